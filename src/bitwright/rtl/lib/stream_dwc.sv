// SPDX-License-Identifier: Apache-2.0
// Width converter, element order kept: the first narrow beat is in the least significant bits of
// the wide one. One of InWidth, OutWidth divides the other.
// Up (ratio R): one input beat a cycle; the wide beat is on the output 1 cycle after its last
// input beat was accepted. Down: R output beats a cycle each, no bubble; the first is on the
// output 2 cycles after the wide beat was accepted; the next wide beat is accepted R cycles
// later. Equal widths: a stream_skid. The beats of a frame must be a multiple of the ratio.
`default_nettype none
module stream_dwc #(
  parameter int InWidth  = 8,
  parameter int OutWidth = 16
) (
  input  logic                clk_i,
  input  logic                rst_ni,
  input  logic                in_valid_i,
  output logic                in_ready_o,
  input  logic [InWidth-1:0]  in_data_i,
  output logic                out_valid_o,
  input  logic                out_ready_i,
  output logic [OutWidth-1:0] out_data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (InWidth < 1 || OutWidth < 1
      || (InWidth % OutWidth != 0 && OutWidth % InWidth != 0)) begin : gen_check
    $error("stream_dwc: one of InWidth and OutWidth must divide the other");
  end
`endif

  logic                skid_valid, skid_ready;
  logic [OutWidth-1:0] skid_data;

  if (InWidth < OutWidth) begin : gen_up
    localparam int Ratio      = OutWidth / InWidth;
    localparam int CountWidth = $clog2(Ratio);

    logic [CountWidth-1:0]       count_q;
    logic [OutWidth-InWidth-1:0] shift_q;
    logic                        in_fire;

    assign in_ready_o = skid_ready;
    assign in_fire    = in_valid_i & skid_ready;
    assign skid_valid = in_valid_i & (count_q == CountWidth'(Ratio - 1));
    assign skid_data  = {in_data_i, shift_q};

    always_ff @(posedge clk_i) begin : p_count
      if (!rst_ni) count_q <= '0;
      else if (in_fire) count_q <= count_q == CountWidth'(Ratio - 1) ? '0 : count_q + 1'b1;
    end

    if (Ratio == 2) begin : gen_two
      always_ff @(posedge clk_i) begin : p_shift
        if (in_fire) shift_q <= in_data_i;
      end
    end else begin : gen_many
      always_ff @(posedge clk_i) begin : p_shift
        if (in_fire) shift_q <= {in_data_i, shift_q[OutWidth-InWidth-1:InWidth]};
      end
    end
  end else if (InWidth > OutWidth) begin : gen_down
    localparam int Ratio      = InWidth / OutWidth;
    localparam int CountWidth = Ratio > 2 ? $clog2(Ratio - 1) : 1;

    // load_q: nothing is held, or its last beat. One flip-flop for it, one enable and one
    // multiplexer a bit keep the mapper from copying the control into every bit. What is loaded
    // without valid is never looked at.
    logic [CountWidth-1:0] count_q;
    logic [InWidth-1:0]    shift_q;
    logic                  valid_q, load_q;

    assign in_ready_o = load_q & skid_ready;
    assign skid_valid = valid_q;
    assign skid_data  = shift_q[OutWidth-1:0];

    always_ff @(posedge clk_i) begin : p_count
      if (!rst_ni) begin
        valid_q <= 1'b0;
        load_q  <= 1'b1;
        count_q <= '0;
      end else if (skid_ready) begin
        if (load_q) begin
          valid_q <= in_valid_i;
          load_q  <= ~in_valid_i;
          count_q <= '0;
        end else begin
          load_q  <= count_q == CountWidth'(Ratio - 2);
          count_q <= count_q + 1'b1;
        end
      end
    end

    always_ff @(posedge clk_i) begin : p_shift
      if (skid_ready) begin
        shift_q <= load_q ? in_data_i
                          : {shift_q[InWidth-1 -: OutWidth], shift_q[InWidth-1:OutWidth]};
      end
    end
  end else begin : gen_equal
    assign in_ready_o = skid_ready;
    assign skid_valid = in_valid_i;
    assign skid_data  = in_data_i;
  end

  stream_skid #(.Width(OutWidth)) i_skid (
    .clk_i, .rst_ni,
    .in_valid_i(skid_valid), .in_ready_o(skid_ready), .in_data_i(skid_data),
    .out_valid_o, .out_ready_i, .out_data_o
  );
endmodule
`default_nettype wire
