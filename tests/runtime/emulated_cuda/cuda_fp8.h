// SPDX-License-Identifier: Apache-2.0
//
// FP8 as CUDA's header of this name has it, on a CPU.
#pragma once

#include "runtime/fp8.h"

using __nv_fp8_storage_t = unsigned char;
enum __nv_saturation_t { __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

inline __nv_fp8_storage_t __nv_cvt_double_to_fp8(double x, __nv_saturation_t,
                                                 __nv_fp8_interpretation_t format) {
  using millwright::Fp8Format;
  return millwright::ToFp8(format == __NV_E4M3 ? Fp8Format::kE4m3 : Fp8Format::kE5m2, x);
}
inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t saturation,
                                                __nv_fp8_interpretation_t format) {
  return __nv_cvt_double_to_fp8(double(x), saturation, format);
}
