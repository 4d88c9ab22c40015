// SPDX-License-Identifier: Apache-2.0
// Lanes of InWidth bits to lanes of OutWidth bits, values kept; combinational. Signed: two's
// complement in and out; Bipolar (InWidth = 1): 1 and 0 become +1 and -1 in two's complement;
// else unsigned.
`default_nettype none
module lane_widen #(
  parameter int PE       = 1,
  parameter int InWidth  = 4,
  parameter bit Signed   = 1'b0,
  parameter bit Bipolar  = 1'b0,
  parameter int OutWidth = 5
) (
  input  logic [PE*InWidth-1:0]  data_i,
  output logic [PE*OutWidth-1:0] data_o
);
`ifndef __ICARUS__  // version 11 has no elaboration tasks
  if (PE < 1 || InWidth < 1 || OutWidth < InWidth) begin : gen_check
    $error("lane_widen: OutWidth must be at least InWidth");
  end
  if (Bipolar && (InWidth != 1 || OutWidth < 2)) begin : gen_check_bipolar
    $error("lane_widen: a bipolar lane has one bit and needs two as a number");
  end
`endif

  for (genvar p = 0; p < PE; p++) begin : gen_lane
    if (Bipolar) begin : gen_bipolar
      assign data_o[p*OutWidth +: OutWidth] = {{OutWidth - 1{~data_i[p]}}, 1'b1};
    end else if (Signed) begin : gen_signed
      assign data_o[p*OutWidth +: OutWidth] = OutWidth'($signed(data_i[p*InWidth +: InWidth]));
    end else begin : gen_unsigned
      assign data_o[p*OutWidth +: OutWidth] = OutWidth'(data_i[p*InWidth +: InWidth]);
    end
  end
endmodule
`default_nettype wire
