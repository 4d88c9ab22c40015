// SPDX-License-Identifier: Apache-2.0
// Indices of the K largest of Classes scores, the largest first, of equals the first; PE scores a
// beat (lane 0 first), Classes/PE beats a frame, one beat a cycle, K output beats a frame, one
// index each. A frame's last beat accepted in cycle t gives its j-th index (from 0) in cycle
// t + 3 + $clog2(PE) + j. K above 1 needs PE = 1.
`default_nettype none
module top_k #(
  parameter int Classes    = 10,
  parameter int K          = 1,
  parameter int PE         = 1,
  parameter int Width      = 12,
  parameter bit Signed     = 1'b1,
  parameter int IndexWidth = 4
) (
  input  logic                  clk_i,
  input  logic                  rst_ni,
  input  logic                  in_valid_i,
  output logic                  in_ready_o,
  input  logic [PE*Width-1:0]   in_data_i,
  output logic                  out_valid_o,
  input  logic                  out_ready_i,
  output logic [IndexWidth-1:0] out_data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Classes < 1 || PE < 1 || Classes % PE != 0) begin : gen_check_fold
    $error("top_k: PE must divide Classes");
  end
  if (Width < 1 || IndexWidth < 1 || Classes > (1 << IndexWidth)) begin : gen_check_index
    $error("top_k: IndexWidth must hold Classes - 1");
  end
  if (K < 1 || K > Classes || (K > 1 && PE != 1)) begin : gen_check_k
    $error("top_k: K must be 1 to Classes, and PE 1 if it is more than 1");
  end
`endif

  localparam int Fold      = Classes / PE;
  localparam int FoldWidth = Fold > 1 ? $clog2(Fold) : 1;
  localparam int Levels    = PE > 1 ? $clog2(PE) : 0;
  localparam int Leaves    = 1 << Levels;
  // Compared keys are unsigned with one bit more; key 0 marks a leaf that is not there. A signed
  // score is made unsigned by turning its sign bit over.
  localparam int KeyWidth  = Width + 1;
  localparam int NodeWidth = KeyWidth + IndexWidth;
  localparam int Depth     = 1 + Levels;

  logic en;
  logic [FoldWidth-1:0] fold_q;
  logic [Depth-1:0]     valid_q, first_q, last_q;
  logic [IndexWidth-1:0] index_q;  // index of lane 0 of the present beat

  assign in_ready_o = en;

  always_ff @(posedge clk_i) begin : p_fold
    if (!rst_ni) begin
      fold_q  <= '0;
      index_q <= '0;
    end else if (en && in_valid_i) begin
      fold_q  <= fold_q == FoldWidth'(Fold - 1) ? '0 : fold_q + 1'b1;
      index_q <= fold_q == FoldWidth'(Fold - 1) ? '0 : index_q + IndexWidth'(PE);
    end
  end

  if (Depth == 1) begin : gen_flags_one
    always_ff @(posedge clk_i) begin : p_flags
      if (!rst_ni) valid_q <= '0;
      else if (en) valid_q <= in_valid_i;
      if (en) begin
        first_q <= fold_q == '0;
        last_q  <= fold_q == FoldWidth'(Fold - 1);
      end
    end
  end else begin : gen_flags
    always_ff @(posedge clk_i) begin : p_flags
      if (!rst_ni) valid_q <= '0;
      else if (en) valid_q <= {valid_q[Depth-2:0], in_valid_i};
      if (en) begin
        first_q <= {first_q[Depth-2:0], fold_q == '0};
        last_q  <= {last_q[Depth-2:0], fold_q == FoldWidth'(Fold - 1)};
      end
    end
  end

  // Tournament over the lanes of a beat: nodes 1 .. 2*Leaves-1 as a heap, every level registered.
  logic [2*Leaves*NodeWidth-1:0] heap_d, heap_q;
  assign heap_d[NodeWidth-1:0] = '0;

  for (genvar n = 0; n < Leaves; n++) begin : gen_leaf
    if (n < PE) begin : gen_score
      logic [Width-1:0] score;
      if (Signed) begin : gen_signed
        assign score = in_data_i[n*Width +: Width] ^ (Width'(1) << (Width - 1));
      end else begin : gen_unsigned
        assign score = in_data_i[n*Width +: Width];
      end
      assign heap_d[(Leaves+n)*NodeWidth +: NodeWidth] = {index_q + IndexWidth'(n), 1'b1, score};
    end else begin : gen_absent
      assign heap_d[(Leaves+n)*NodeWidth +: NodeWidth] = '0;
    end
  end

  for (genvar n = 1; n < Leaves; n++) begin : gen_node
    logic [NodeWidth-1:0] left, right;
    assign left  = heap_q[2*n*NodeWidth +: NodeWidth];
    assign right = heap_q[(2*n+1)*NodeWidth +: NodeWidth];
    assign heap_d[n*NodeWidth +: NodeWidth] =
      right[KeyWidth-1:0] > left[KeyWidth-1:0] ? right : left;
  end

  always_ff @(posedge clk_i) begin : p_heap
    if (en) heap_q <= heap_d;
  end

  // The K best of the frame so far, best first; only a greater score goes before another.
  logic [NodeWidth-1:0]    winner;
  logic [K*NodeWidth-1:0]  best_q;
  logic [K-1:0]            beats;  // the winner goes before place k
  logic                    done_q, out_valid;
  logic [IndexWidth-1:0]   out_index;

  assign winner = heap_q[NodeWidth +: NodeWidth];

  always_ff @(posedge clk_i) begin : p_done
    if (!rst_ni) done_q <= 1'b0;
    else if (en) done_q <= valid_q[Depth-1] & last_q[Depth-1];
  end

  for (genvar k = 0; k < K; k++) begin : gen_best
    assign beats[k] = first_q[Depth-1]
                    | (winner[KeyWidth-1:0] > best_q[k*NodeWidth +: KeyWidth]);
    if (k == 0) begin : gen_first
      always_ff @(posedge clk_i) begin : p_best
        if (en && valid_q[Depth-1] && beats[0]) best_q[NodeWidth-1:0] <= winner;
      end
    end else begin : gen_next
      // At the first score of a frame the places behind it become empty: key 0.
      always_ff @(posedge clk_i) begin : p_best
        if (en && valid_q[Depth-1] && beats[k]) begin
          best_q[k*NodeWidth +: NodeWidth] <= first_q[Depth-1] ? '0
            : beats[k-1] ? best_q[(k-1)*NodeWidth +: NodeWidth] : winner;
        end
      end
    end
  end

  if (K == 1) begin : gen_one
    assign out_valid = done_q;
    assign out_index = best_q[NodeWidth-1 -: IndexWidth];
  end else begin : gen_many
    // The first index goes out at once, the others through a shift register: the next frame
    // may begin meanwhile.
    logic [K-2:0]                left_q;
    logic [(K-1)*IndexWidth-1:0] rest_q, rest;

    for (genvar k = 1; k < K; k++) begin : gen_rest
      assign rest[(k-1)*IndexWidth +: IndexWidth] = best_q[(k+1)*NodeWidth-1 -: IndexWidth];
    end
    always_ff @(posedge clk_i) begin : p_left
      if (!rst_ni) left_q <= '0;
      else if (en) left_q <= done_q ? '1 : left_q >> 1;
      if (en) rest_q <= done_q ? rest : rest_q >> IndexWidth;
    end
    assign out_valid = done_q | left_q[0];
    assign out_index = done_q ? best_q[NodeWidth-1 -: IndexWidth] : rest_q[IndexWidth-1:0];
  end

  stream_skid #(.Width(IndexWidth)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i(out_valid), .in_ready_o(en), .in_data_i(out_index),
    .out_valid_o, .out_ready_i, .out_data_o
  );

  logic unused;
  assign unused = &{1'b0, heap_q[NodeWidth-1:0]};
endmodule
`default_nettype wire
