# SPDX-License-Identifier: Apache-2.0
"""The part of Caffe's protobuf schema that networks use, built at run time: no protoc, no file.

Names and numbers are those of BVLC Caffe 1.0 (``caffe.proto``) and, for ``quantization_param``, of
Ristretto (Gysel et al. 2016, the public Caffe fork). Fields that are not listed survive in binary
files (protobuf keeps what it does not know) and are refused in text.

A line is ``name = number type [default]``; ``*`` repeated, ``+`` repeated and packed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

_ENUMS = {
    "Phase": ("TRAIN", "TEST"),
    "PoolMethod": ("MAX", "AVE", "STOCHASTIC"),
    "RoundMode": ("CEIL", "FLOOR"),
    "Engine": ("DEFAULT", "CAFFE", "CUDNN"),
    "EltwiseOp": ("PROD", "SUM", "MAX"),
    "VarianceNorm": ("FAN_IN", "FAN_OUT", "AVERAGE"),
    "DimCheckMode": ("STRICT", "PERMISSIVE"),
    "DB": ("LEVELDB", "LMDB"),
    "Precision": ("DYNAMIC_FIXED_POINT", "MINIFLOAT", "INTEGER_POWER_OF_2_WEIGHTS"),
    "Rounding": ("NEAREST", "STOCHASTIC"),
    "NormalizationMode": ("FULL", "VALID", "BATCH_SIZE", "NONE"),
    "NormRegion": ("ACROSS_CHANNELS", "WITHIN_CHANNEL"),
}
#: Values of different enumerations may have one name, so each lives inside a message of its own.
_HOME = {
    "PoolMethod": "PoolingParameter", "RoundMode": "PoolingParameter",
    "Engine": "EngineHolder", "EltwiseOp": "EltwiseParameter", "VarianceNorm": "FillerParameter",
    "DimCheckMode": "ParamSpec", "DB": "DataParameter", "Precision": "QuantizationParameter",
    "Rounding": "QuantizationParameter", "NormalizationMode": "LossParameter",
    "NormRegion": "LRNParameter",
}  # fmt: skip

_MESSAGES = {
    "BlobShape": "dim=1 int64+",
    "BlobProto": """shape=7 BlobShape; data=5 float+; diff=6 float+; double_data=8 double+;
        double_diff=9 double+; num=1 int32 0; channels=2 int32 0; height=3 int32 0;
        width=4 int32 0""",
    "FillerParameter": """type=1 string constant; value=2 float 0; min=3 float 0; max=4 float 1;
        mean=5 float 0; std=6 float 1; sparse=7 int32 -1; variance_norm=8 VarianceNorm FAN_IN""",
    "NetState": "phase=1 Phase TEST; level=2 int32 0; stage=3 string*",
    "NetStateRule": """phase=1 Phase; min_level=2 int32; max_level=3 int32; stage=4 string*;
        not_stage=5 string*""",
    "ParamSpec": """name=1 string; share_mode=2 DimCheckMode; lr_mult=3 float 1;
        decay_mult=4 float 1""",
    "TransformationParameter": """scale=1 float 1; mirror=2 bool false; crop_size=3 uint32 0;
        mean_file=4 string; mean_value=5 float*; force_color=6 bool false;
        force_gray=7 bool false""",
    "LossParameter": """ignore_label=1 int32; normalization=3 NormalizationMode VALID;
        normalize=2 bool""",
    "AccuracyParameter": "top_k=1 uint32 1; axis=2 int32 1; ignore_label=3 int32",
    "ArgMaxParameter": "out_max_val=1 bool false; top_k=2 uint32 1; axis=3 int32",
    "ConcatParameter": "axis=2 int32 1; concat_dim=1 uint32 1",
    "BatchNormParameter": """use_global_stats=1 bool; moving_average_fraction=2 float 0.999;
        eps=3 float 0.00001""",
    "BiasParameter": "axis=1 int32 1; num_axes=2 int32 1; filler=3 FillerParameter",
    "ConvolutionParameter": """num_output=1 uint32; bias_term=2 bool true; pad=3 uint32*;
        kernel_size=4 uint32*; stride=6 uint32*; dilation=18 uint32*; pad_h=9 uint32 0;
        pad_w=10 uint32 0; kernel_h=11 uint32; kernel_w=12 uint32; stride_h=13 uint32;
        stride_w=14 uint32; group=5 uint32 1; weight_filler=7 FillerParameter;
        bias_filler=8 FillerParameter; engine=15 Engine DEFAULT; axis=16 int32 1;
        force_nd_im2col=17 bool false""",
    "DataParameter": """source=1 string; batch_size=4 uint32; rand_skip=7 uint32 0;
        backend=8 DB LEVELDB; scale=2 float 1; mean_file=3 string; crop_size=5 uint32 0;
        mirror=6 bool false; force_encoded_color=9 bool false; prefetch=10 uint32 4""",
    "DropoutParameter": "dropout_ratio=1 float 0.5",
    "DummyDataParameter": """data_filler=1 FillerParameter*; shape=6 BlobShape*; num=2 uint32*;
        channels=3 uint32*; height=4 uint32*; width=5 uint32*""",
    "EltwiseParameter": """operation=1 EltwiseOp SUM; coeff=2 float*;
        stable_prod_grad=3 bool true""",
    "ELUParameter": "alpha=1 float 1",
    "FlattenParameter": "axis=1 int32 1; end_axis=2 int32 -1",
    "HDF5DataParameter": "source=1 string; batch_size=2 uint32; shuffle=3 bool false",
    "ImageDataParameter": """source=1 string; batch_size=4 uint32 1; rand_skip=7 uint32 0;
        shuffle=8 bool false; new_height=9 uint32 0; new_width=10 uint32 0; is_color=11 bool true;
        scale=2 float 1; mean_file=3 string; crop_size=5 uint32 0; mirror=6 bool false;
        root_folder=12 string""",
    "InnerProductParameter": """num_output=1 uint32; bias_term=2 bool true;
        weight_filler=3 FillerParameter; bias_filler=4 FillerParameter; axis=5 int32 1;
        transpose=6 bool false""",
    "InputParameter": "shape=1 BlobShape*",
    "LRNParameter": """local_size=1 uint32 5; alpha=2 float 1; beta=3 float 0.75;
        norm_region=4 NormRegion ACROSS_CHANNELS; k=5 float 1; engine=6 Engine DEFAULT""",
    "MemoryDataParameter": """batch_size=1 uint32; channels=2 uint32; height=3 uint32;
        width=4 uint32""",
    "PoolingParameter": """pool=1 PoolMethod MAX; pad=4 uint32 0; pad_h=9 uint32 0;
        pad_w=10 uint32 0; kernel_size=2 uint32; kernel_h=5 uint32; kernel_w=6 uint32;
        stride=3 uint32 1; stride_h=7 uint32; stride_w=8 uint32; engine=11 Engine DEFAULT;
        global_pooling=12 bool false; round_mode=13 RoundMode CEIL""",
    "PowerParameter": "power=1 float 1; scale=2 float 1; shift=3 float 0",
    "PReLUParameter": "filler=1 FillerParameter; channel_shared=2 bool false",
    "QuantizationParameter": """precision=1 Precision DYNAMIC_FIXED_POINT;
        rounding_scheme=2 Rounding NEAREST; bw_layer_in=3 uint32 32; bw_layer_out=4 uint32 32;
        bw_params=5 uint32 32; fl_layer_in=6 int32 16; fl_layer_out=7 int32 16;
        fl_params=8 int32 16; mant_bits=9 uint32 23; exp_bits=10 uint32 8; exp_min=11 int32 -8;
        exp_max=12 int32 -1""",
    "ReLUParameter": "negative_slope=1 float 0; engine=2 Engine DEFAULT",
    "ReshapeParameter": "shape=1 BlobShape; axis=2 int32 0; num_axes=3 int32 -1",
    "ScaleParameter": """axis=1 int32 1; num_axes=2 int32 1; filler=3 FillerParameter;
        bias_term=4 bool false; bias_filler=5 FillerParameter""",
    "SigmoidParameter": "engine=1 Engine DEFAULT",
    "SliceParameter": "axis=3 int32 1; slice_point=2 uint32*; slice_dim=1 uint32 1",
    "SoftmaxParameter": "engine=1 Engine DEFAULT; axis=2 int32 1",
    "TanHParameter": "engine=1 Engine DEFAULT",
    "EngineHolder": "",
    "V1LayerParameter": "name=4 string; bottom=2 string*; top=3 string*; blobs=6 BlobProto*",
    "LayerParameter": """name=1 string; type=2 string; bottom=3 string*; top=4 string*;
        phase=10 Phase; loss_weight=5 float*; param=6 ParamSpec*; blobs=7 BlobProto*;
        propagate_down=11 bool*; include=8 NetStateRule*; exclude=9 NetStateRule*;
        transform_param=100 TransformationParameter; loss_param=101 LossParameter;
        accuracy_param=102 AccuracyParameter; argmax_param=103 ArgMaxParameter;
        batch_norm_param=139 BatchNormParameter; bias_param=141 BiasParameter;
        concat_param=104 ConcatParameter; convolution_param=106 ConvolutionParameter;
        data_param=107 DataParameter; dropout_param=108 DropoutParameter;
        dummy_data_param=109 DummyDataParameter; eltwise_param=110 EltwiseParameter;
        elu_param=140 ELUParameter; flatten_param=135 FlattenParameter;
        hdf5_data_param=112 HDF5DataParameter; image_data_param=115 ImageDataParameter;
        inner_product_param=117 InnerProductParameter; input_param=143 InputParameter;
        lrn_param=118 LRNParameter; memory_data_param=119 MemoryDataParameter;
        pooling_param=121 PoolingParameter; power_param=122 PowerParameter;
        prelu_param=131 PReLUParameter; quantization_param=148 QuantizationParameter;
        relu_param=123 ReLUParameter; reshape_param=133 ReshapeParameter;
        scale_param=142 ScaleParameter; sigmoid_param=124 SigmoidParameter;
        slice_param=126 SliceParameter; softmax_param=125 SoftmaxParameter;
        tanh_param=127 TanHParameter""",
    "NetParameter": """name=1 string; input=3 string*; input_shape=8 BlobShape*;
        input_dim=4 int32*; force_backward=5 bool false; state=6 NetState;
        debug_info=7 bool false; layer=100 LayerParameter*; layers=2 V1LayerParameter*""",
}

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "int32": _FIELD.TYPE_INT32, "int64": _FIELD.TYPE_INT64, "uint32": _FIELD.TYPE_UINT32,
    "float": _FIELD.TYPE_FLOAT, "double": _FIELD.TYPE_DOUBLE, "bool": _FIELD.TYPE_BOOL,
    "string": _FIELD.TYPE_STRING,
}  # fmt: skip


@lru_cache(maxsize=1)
def net_class() -> Any:
    """The message class ``caffe.NetParameter``."""
    file = descriptor_pb2.FileDescriptorProto(
        name="bitwright/caffe.proto", package="caffe", syntax="proto2"
    )
    for name, values in _ENUMS.items():
        if name not in _HOME:
            _add_enum(file.enum_type, name, values)
    for name, text in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for enum, home in _HOME.items():
            if home == name:
                _add_enum(message.enum_type, enum, _ENUMS[enum])
        for line in filter(None, (part.strip() for part in text.split(";"))):
            _add_field(message, line)
    pool = descriptor_pool.DescriptorPool()  # of our own: a user's caffe_pb2 may be loaded too
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("caffe.NetParameter"))


def _add_enum(place: Any, name: str, values: tuple[str, ...]) -> None:
    enum = place.add(name=name)
    for number, value in enumerate(values):
        enum.value.add(name=value, number=number)


def _add_field(message: descriptor_pb2.DescriptorProto, line: str) -> None:
    head, kind, *default = line.split()
    name, number = head.split("=")
    bare = kind.rstrip("*+")
    field = message.field.add(name=name, number=int(number))
    field.label = _FIELD.LABEL_OPTIONAL if bare == kind else _FIELD.LABEL_REPEATED
    if kind.endswith("+"):
        field.options.packed = True
    if bare in _SCALARS:
        field.type = _SCALARS[bare]
    elif bare in _ENUMS:
        field.type = _FIELD.TYPE_ENUM
        field.type_name = ".caffe." + (f"{_HOME[bare]}.{bare}" if bare in _HOME else bare)
    else:
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".caffe.{bare}"
    if default:
        field.default_value = default[0]
