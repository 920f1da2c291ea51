// SPDX-License-Identifier: Apache-2.0
//
// Which curve does a measured row belong to?  What its `source` and `library` say of clocks,
// kernel and software stack; versions are left out, so that releases of a stack share a curve.
#pragma once

#include <string>

#include "cost_models/collective_curve.h"
#include "validate/measurement.h"

namespace millwright {

// "aic:h100_sxm/attention/vllm/0.24.0:vllm_flash_attn_fa3" is attention/vllm/vllm_flash_attn_fa3;
// "vidur:compute/..." is vidur; what is in another form is its first and last word.
std::string StackOf(const std::string& source);

// sustained for collections that time steady load (SimuMax, vidur) and for `measure`, whose first
// repeats are of a stack "...-burst"; warm for SGLang's linear layers, whose large shapes are up to
// 10% slower than TensorRT-LLM's in the same collection; burst for all others.
const char* ClocksOf(const std::string& source);

// bfloat16 for float16, else as it is.
std::string CurveDtype(const std::string& dtype);

// Whether a product's time holds the quantisation of its activations: TensorRT-LLM's do, as their
// source says, and by their times SGLang's calls of DeepGEMM (three bytes for each element of A on
// top of the product).  DeepGEMM's own table is of products alone.
bool HoldsCast(const std::string& dtype, const std::string& source);

// nccl-tests, torch, what joined the ranks of `measure`, or a custom kernel's name without its
// version.
std::string LibraryOf(const MeasuredCollective& collective);

// NCCL 2.29 or later, by the release that the rows of an nccl-tests table state; earlier where they
// state none.
bool IsRecent(const MeasuredCollective& collective);

// What joins the domains, by the words of the topology: IB, RoCE, EFA, TCPXO, TCPX, Azure's
// network without GPUDirect, or "other"; empty inside one domain.  Rows with one GPU a node, which
// has a NIC to itself, are a fabric of their own, and so are those whose library says that NCCL was
// given more queue pairs for its NICs, which at 8 nodes of H100 makes 391 of 320 GB/s.
std::string FabricOf(const MeasuredCollective& collective);

// nullptr kinds (DeepEP) are no NCCL collective.
const CollectiveKind* KindOf(const std::string& op);

}  // namespace millwright
