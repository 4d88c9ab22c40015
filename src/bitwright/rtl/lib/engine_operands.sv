// SPDX-License-Identifier: Apache-2.0
// Fetches the feature words of a tap: pixel p of a group of Pixels, in rows of 2^patch_i, lies (p
// mod 2^patch_i) pixel steps and (p / 2^patch_i) row steps behind the tap's address; its coordinate
// is as far from the tap's in strides. A pixel outside 0 .. height - 1, 0 .. width - 1, or outside
// the columns and lines of the patch that count, is not read: its word is 0. In pass j of passes_i
// + 1 the pixels j * Pixels / passes on are read, whose words must lie in different banks
// (asserted); when the last pass is read all words are there. Latency 6: tap in cycle t, words in
// t + 6. Rows of the memory go out in t + 2, its data come in t + 5. All inputs belong to the tap.
`default_nettype none
module engine_operands #(
  parameter int Pixels     = 4,
  parameter int Width      = 64,
  parameter int AddrWidth  = 15,
  parameter int CoordWidth = 12,
  localparam int BankWidth = $clog2(Pixels),
  localparam int RowWidth  = AddrWidth - BankWidth
) (
  input  logic                       clk_i,
  input  logic                       rst_ni,
  input  logic                       valid_i,
  input  logic [7:0]                 pass_i,
  input  logic [AddrWidth-1:0]       addr_i,
  input  logic [CoordWidth-1:0]      x_i,
  input  logic [CoordWidth-1:0]      y_i,
  input  logic [7:0]                 columns_i,  // of the patch that count
  input  logic [7:0]                 lines_i,    // and rows
  input  logic [7:0]                 passes_i,  // less one
  input  logic [3:0]                 patch_i,
  input  logic [AddrWidth-1:0]       pixel_step_i,
  input  logic [AddrWidth-1:0]       row_step_i,
  input  logic [CoordWidth-1:0]      stride_x_i,
  input  logic [CoordWidth-1:0]      stride_y_i,
  input  logic [CoordWidth-1:0]      width_i,
  input  logic [CoordWidth-1:0]      height_i,
  output logic [Pixels-1:0]          read_o,    // of every bank
  output logic [Pixels*RowWidth-1:0] rows_o,
  input  logic [Pixels*Width-1:0]    data_i,
  output logic [Pixels-1:0]          kept_o,    // whose word is no padding
  output logic [Pixels*Width-1:0]    words_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (Pixels < 2 || (Pixels & (Pixels - 1)) != 0) begin : gen_check
    $error("engine_operands: Pixels must be a power of two, at least 2");
  end
`endif

  // Cycle 1: address of every pixel; whether it is read in this pass, and whether it is padding.
  logic [Pixels-1:0]           now, in_image, now_q, in_image_q;
  logic [Pixels*AddrWidth-1:0] addr, addr_q;
  logic                        valid_q;

  for (genvar p = 0; p < Pixels; p++) begin : gen_pixel
    logic [BankWidth-1:0]  px, py;
    logic [CoordWidth-1:0] x, y;
    assign px = BankWidth'(p) & ~({BankWidth{1'b1}} << patch_i);
    assign py = BankWidth'(p) >> patch_i;

    engine_offset #(.Bits(BankWidth), .Number(p), .Width(AddrWidth)) i_address (
      .patch_i, .base_i(addr_i), .pixel_step_i, .row_step_i,
      .place_o(addr[p*AddrWidth +: AddrWidth])
    );
    engine_offset #(.Bits(BankWidth), .Number(p), .Width(CoordWidth)) i_x (
      .patch_i, .base_i(x_i), .pixel_step_i(stride_x_i), .row_step_i({CoordWidth{1'b0}}),
      .place_o(x)
    );
    engine_offset #(.Bits(BankWidth), .Number(p), .Width(CoordWidth)) i_y (
      .patch_i, .base_i(y_i), .pixel_step_i({CoordWidth{1'b0}}),
      .row_step_i(stride_y_i), .place_o(y)
    );
    // As unsigned numbers negative coordinates are large.
    assign in_image[p] = x < width_i && y < height_i && 8'(px) < columns_i && 8'(py) < lines_i;

    // With 2^k passes the k upper bits of p are the pass.
    logic [BankWidth:0] of_pass;
    for (genvar k = 0; k <= BankWidth; k++) begin : gen_passes
      assign of_pass[k] = passes_i == 8'((1 << k) - 1) && pass_i == 8'(p >> (BankWidth - k));
    end
    assign now[p] = of_pass != '0;
  end

  always_ff @(posedge clk_i) begin : p_pixel
    addr_q   <= addr;
    now_q    <= now;
    in_image_q <= in_image;
    if (!rst_ni) valid_q <= 1'b0;
    else valid_q <= valid_i;
  end

  // Cycle 2: which pixel every bank reads.
  logic [Pixels-1:0]           read;
  logic [Pixels*RowWidth-1:0]  rows;
  logic [Pixels*BankWidth-1:0] bank_q, bank;
  logic [Pixels-1:0]           now_2_q, in_image_2_q, now_late, in_image_late;

  always_comb begin : p_bank
    read = '0;
    rows = '0;
    for (int b = 0; b < Pixels; b++) begin
      for (int p = 0; p < Pixels; p++) begin
        if (now_q[p] && in_image_q[p] && addr_q[p*AddrWidth +: BankWidth] == BankWidth'(b)) begin
          read[b] = valid_q;
          rows[b*RowWidth +: RowWidth] =
            rows[b*RowWidth +: RowWidth] | addr_q[p*AddrWidth+BankWidth +: RowWidth];
        end
      end
    end
  end

  always_ff @(posedge clk_i) begin : p_rows
    if (!rst_ni) read_o <= '0;
    else read_o <= read;
    rows_o     <= rows;
    now_2_q    <= now_q & {Pixels{valid_q}};
    in_image_2_q <= in_image_q;
    for (int p = 0; p < Pixels; p++) begin
      bank_q[p*BankWidth +: BankWidth] <= addr_q[p*AddrWidth +: BankWidth];
    end
  end

  // Cycle 6: every pixel takes the word of its bank.
  engine_delay #(.Width(Pixels * (2 + BankWidth)), .Cycles(3)) i_late (
    .clk_i, .data_i({now_2_q, in_image_2_q, bank_q}), .data_o({now_late, in_image_late, bank})
  );

  for (genvar p = 0; p < Pixels; p++) begin : gen_word
    logic [Width-1:0] word;
    assign word = data_i[int'(bank[p*BankWidth +: BankWidth])*Width +: Width];
    always_ff @(posedge clk_i) begin : p_word
      if (now_late[p]) words_o[p*Width +: Width] <= in_image_late[p] ? word : '0;
      if (now_late[p]) kept_o[p] <= in_image_late[p];
    end
  end

`ifdef BITWRIGHT_CHECKS
  // Two pixels of one pass in one bank would read the wrong row.
  for (genvar p = 1; p < Pixels; p++) begin : gen_assert
    for (genvar n = 0; n < p; n++) begin : gen_pair
      own_bank: assert property (@(posedge clk_i) disable iff (!rst_ni)
        !(valid_q && now_q[p] && now_q[n] && in_image_q[p] && in_image_q[n] &&
          addr_q[p*AddrWidth +: BankWidth] == addr_q[n*AddrWidth +: BankWidth]));
    end
  end
`endif
endmodule
`default_nettype wire
