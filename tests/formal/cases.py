# SPDX-License-Identifier: Apache-2.0
"""The proofs of the library, and for each harness faults that it must find."""

from __future__ import annotations

from dataclasses import dataclass

from tests.formal.prove import Proof

_THRESHOLDS = {"t0_0000.mem": "1\nf\n", "t1_0000.mem": "b\n2\n8\n7\n"}
_TABLE = {"table.mem": "3\n1\n6\n2\n7\n0\n5\n4\n"}
_FACTORS = {"m.mem": "3\n4\n", "o.mem": "b\n2\n"}

PROOFS = (
    Proof("skid", "stream_skid"),
    Proof("fork", "stream_fork"),
    Proof("axis_in", "axis_in"),
    Proof("axis_out", "axis_out"),
    Proof("concat", "stream_concat"),
    Proof("add", "stream_add"),
    Proof("axi_arbiter", "axi_arbiter"),
    Proof("matvec_core", "matvec_core", {"MW": 2, "MH": 2}, depth=16),
    Proof("matvec_core", "matvec_core", {"MW": 4, "MH": 4}, depth=14),
    Proof("matvec_core", "matvec_core", {"MW": 4, "MH": 4, "Wait": 1}, depth=15),
    Proof("matvec_core", "matvec_core", {"MW": 2, "MH": 4, "Wait": 2}, depth=15),
    *(
        Proof("fifo", "stream_fifo", {"Depth": depth, "Style": style})
        for depth in (2, 3, 5, 8)
        for style in (1, 2)
    ),
    Proof("fifo", "stream_fifo", {"Depth": 5, "Style": 1, "Lines": 2}),
    Proof("fifo", "stream_fifo", {"Depth": 5, "Style": 2, "Lines": 2}),
    Proof("fifo", "stream_fifo", {"Depth": 8, "Style": 2, "Lines": 4}),
    *(Proof("dwc", "stream_dwc", {"Up": ratio}) for ratio in (1, 2, 3, 8)),
    *(Proof("dwc", "stream_dwc", {"Down": ratio}) for ratio in (2, 3, 4)),
    Proof("pad", "stream_pad", {"Fold": 1}),
    Proof("pad", "stream_pad", {"Fold": 2, "Right": 1, "Wait": 1}, depth=24),
    Proof("upsample", "stream_upsample", {"Cols": 2}, depth=20),
    Proof("upsample", "stream_upsample", {"Cols": 2, "FactorV": 1}),
    Proof("window", "stream_window", {"Height": 2}, depth=20),
    Proof("window", "stream_window", {"Fold": 2, "Groups": 2, "Height": 2, "Pixels": 5}, depth=22),
    Proof("window", "stream_window", {"Height": 2, "Style": 1, "Lines": 4}, depth=20),
    Proof("window", "stream_window", {"Height": 2, "Style": 2, "Lines": 2}, depth=20),
    Proof("window_parallel", "window_parallel", {"Cols": 2}, depth=20),
    Proof("window_parallel", "window_parallel", {"Stride": 2, "Height": 4}, depth=20),
    Proof("pool_max", "pool_max", {"Fold": 2, "Signed": 1}, depth=18),
    Proof("pool_max", "pool_max", {"Fold": 1}),
    Proof("pool_sum", "pool_sum", {"Fold": 2, "Signed": 1}, depth=18),
    Proof("pool_sum", "pool_sum", {"Fold": 1}),
    Proof("top_k", "top_k", {"Classes": 3}, depth=18),
    Proof("threshold", "threshold", {"Style": 2}, depth=18, memories=_THRESHOLDS),
    Proof("lookup", "lookup", memories=_TABLE),
    Proof("requant", "requant", depth=18, memories=_FACTORS),
    Proof("axi_weights", "axi_weights", depth=14),
)


@dataclass(frozen=True)
class Fault:
    """A text of a module that is another, and the proof that must fall by it."""

    proof: str
    module: str
    old: str
    new: str


FAULTS = (
    # A beat is lost when the input fires into a full register; a held beat changes.
    Fault("skid", "stream_skid", "else if (in_fire) skid_valid_q <= 1'b1;", ""),
    Fault("skid", "stream_skid", "if (main_free) main_data_q <=", "main_data_q <="),
    Fault("fork", "stream_fork", ".in_valid_i(in_valid_i & ready1)", ".in_valid_i(in_valid_i)"),
    Fault("fork", "stream_fork",
          "assign in_ready_o = ready0 & ready1",
          "assign in_ready_o = ready0"),
    Fault("fifo_depth3_style1", "stream_fifo", "full_q  <= 1'b0;\n      end\n", "end\n"),
    Fault("fifo_depth3_style1", "stream_fifo",
          "wr_addr_q == AddrWidth'(Depth - 1)",
          "wr_addr_q == '1"),
    Fault("fifo_depth5_style1_lines2", "mem_rows", "{row2_q, words_q} <= {row_q, words}",
          "{row2_q, words_q} <= {rd_addr_i[AddrWidth-1:LineBits], words}"),
    Fault("fifo_depth5_style2_lines2", "mem_rows", "if (rd_en_i) row_q", "row_q"),
    Fault("axis_in", "axis_in", "if (late) skip_q <= 1'b1;", ""),
    Fault("axis_in", "axis_in", "fill_q ? FillValue", "fill_q & last ? FillValue"),
    Fault("axis_out", "axis_out", "in_valid_i && in_ready_o", "in_valid_i"),
    Fault("axis_out", "axis_out", "BeatWidth'(Beats - 1)", "BeatWidth'(Beats - 2)"),
    Fault("dwc_up3", "stream_dwc", "{in_data_i, shift_q}", "{shift_q, in_data_i}"),
    Fault("dwc_up2", "stream_dwc", "if (in_fire) shift_q <= in_data_i;", "shift_q <= in_data_i;"),
    Fault("dwc_down3", "stream_dwc", "CountWidth'(Ratio - 2)", "CountWidth'(Ratio - 3)"),
    Fault("dwc_down2", "stream_dwc", "valid_q <= in_valid_i;", "valid_q <= 1'b1;"),
    Fault("concat", "stream_concat", "second_q ? b : a", "a"),
    Fault("concat", "stream_concat", "if (part_last) second_q", "second_q"),
    Fault("add", "stream_add", "assign in0_ready_o = en & in1_valid_i", "assign in0_ready_o = en"),
    Fault("add", "stream_add", "{valid_q[Levels-2:0], fire}", "{valid_q[Levels-2:0], in0_valid_i}"),
    Fault("pad_fold1", "stream_pad", "in_frame ? inner_data : PadValue", "inner_data"),
    Fault("pad_fold1", "stream_pad",
          "if (row_last) row_in_q <= Top == 0;",
          "if (row_last) row_in_q <= 1'b1;"),
    Fault("upsample_cols2_factorv1", "stream_upsample",
          "fresh_q <= pixel_last & (",
          "fresh_q <= ~pixel_last & ("),
    Fault("upsample_cols2_factorv1", "stream_upsample",
          "else if (en) {valid2_q",
          "else {valid2_q"),
    Fault("pool_max_fold1", "pool_max", "(first1_q | wins)", "wins"),
    Fault("pool_max_fold1", "pool_max", "done_q   <= valid1_q & last1_q;", "done_q   <= last1_q;"),
    Fault("pool_sum_fold1", "pool_sum", "& {SumWidth{~first1_q}}", ""),
    Fault("pool_sum_fold1", "pool_sum", "if (valid1_q) sum_q <= sum;", "sum_q <= sum;"),
    Fault("top_k_classes3", "top_k",
          "(winner[KeyWidth-1:0] > best_q",
          "(winner[KeyWidth-1:0] >= best_q"),
    Fault("top_k_classes3", "top_k",
          "left_q <= done_q ? '1 : left_q >> 1",
          "left_q <= left_q >> 1"),
    Fault("threshold_style2", "threshold_stage", "x_now >= limit", "x_now > limit"),
    Fault("threshold_style2", "threshold_stage", "else if (en_i) valid_q", "else valid_q"),
    Fault("lookup", "lookup", "addr = {fold_q, in_data_i", "addr = {~fold_q, in_data_i"),
    Fault("lookup", "lookup", "if (en) code_q <= code;", "code_q <= code;"),
    Fault("requant", "round_clip", "assign tie_bit = x[Shift];", "assign tie_bit = 1'b1;"),
    Fault("requant", "requant", "if (valid_q[Levels]) begin", "if (valid_q[0]) begin"),
    Fault("axi_weights", "axi_weights", "free_q >= length", "free_q != '0"),
    Fault("axi_weights", "axi_weights", "run_q == '0 ? start : ar_addr_o", "ar_addr_o"),
    Fault("axi_arbiter", "axi_arbiter", "m_axi_rid == {epoch_q,", "m_axi_rid[UnitWidth-1:0] == {"),
    Fault("axi_arbiter", "axi_arbiter",
          "epoch_q + EpochWidth'(asked)",
          "epoch_q + EpochWidth'(asked_q)"),
    Fault("matvec_core_mw2_mh2", "matvec_core", "(~first_pass_q | in_valid_i)", "1'b1"),
    Fault("matvec_core_mw2_mh2", "mac_sum",
          "first_i ? AccWidth'($signed(init_i)) : acc_q",
          "acc_q"),
    Fault("matvec_core_mw4_mh4_wait1", "matvec_core", "fresh2_q ? act2_q", "fresh_q ? act2_q"),
    Fault("window_height2", "stream_window", "LevelWidth'(-Span)", "LevelWidth'(1 - Span)"),
    Fault("window_parallel_cols2", "window_parallel",
          "pixels[(KernelH - 1 - k)", "pixels[(k)"),
    Fault("window_parallel_cols2", "window_parallel",
          "if (row_last) row_wait_q <=", "if (1'b0) row_wait_q <="),
    Fault("window_fold2_groups2_height2_pixels5", "window_addr",
          "modulo(1 - Reach)",
          "modulo(-Reach)"),
)  # fmt: skip
