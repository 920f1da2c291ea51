// SPDX-License-Identifier: Apache-2.0
//
// BF16 as CUDA's header of this name has it, on a CPU: rounded to the nearest, ties to even.
#pragma once

#include <bit>
#include <cstdint>

struct __nv_bfloat16 {
  std::uint16_t bits = 0;
};
inline float __bfloat162float(__nv_bfloat16 x) {
  return std::bit_cast<float>(std::uint32_t{x.bits} << 16);
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  auto bits = std::bit_cast<std::uint32_t>(x);
  bits += 0x7fff + ((bits >> 16) & 1);
  return {std::uint16_t(bits >> 16)};
}
