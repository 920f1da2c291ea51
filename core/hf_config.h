// SPDX-License-Identifier: Apache-2.0
//
// Which ModelConfig does an unmodified Hugging Face config.json describe?
//
// One table entry per architecture (model_type) says under which keys the sizes stand, what is
// assumed where a key is absent, and which traits the architecture has by definition; a new
// architecture that is made of known parts costs one entry.  Absent keys mean what they mean to
// the transformers library: its configuration classes are the source of every default.
//
// Keys that mean nothing here are ignored, and Python's NaN and Infinity are accepted in them.
// Of a multi-modal wrapper the text model is read.  An architecture that cannot be modelled is
// refused by name.  Not modelled, and without effect on sizes: the kind of rotary scaling, soft
// caps on logits, the share of a head that rotates, quantization.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/model.h"

namespace millwright {

// `text` is the contents of `file`, which messages use and which names the model (the folder, for
// a file called config.json).  Throws ConfigError with every mistake.  `ignored_keys` receives the
// keys that had no influence, as pointers.
ModelConfig ReadHfConfig(const std::string& file, std::string_view text,
                         std::vector<std::string>* ignored_keys = nullptr);

// The model_types that can be read, in the table's order.
std::vector<std::string_view> HfArchitectures();

}  // namespace millwright
