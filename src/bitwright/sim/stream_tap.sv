// SPDX-License-Identifier: Apache-2.0
// Writes every transfer of a stream to a file, one line of hexadecimal digits each, and at the end
// a line with valid and ready as they stand. Only looks; simulation only.
module stream_tap #(
  parameter int Width = 1,
  parameter     File  = "tap"
) (
  input logic             clk_i,
  input logic             rst_ni,
  input logic             valid_i,
  input logic             ready_i,
  input logic [Width-1:0] data_i
);
  integer file;
  initial file = $fopen(File, "w");
  always @(posedge clk_i) begin
    if (rst_ni && valid_i && ready_i) $fwrite(file, "%h\n", data_i);
  end
  final begin
    $fwrite(file, "end %b%b\n", valid_i, ready_i);
    $fclose(file);
  end
endmodule
