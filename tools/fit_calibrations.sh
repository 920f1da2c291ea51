#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# fit_calibrations.sh [FOLDER]: makes cost_models/presets/curves/*.json again, from the measured
# operations in FOLDER (../shared/data/ops).  The same measurements give the same bytes.
#
# H200 is fitted on top of H100, and B300, GB200 and GB300 on top of the chip they are made of:
# they have fewer rows, and what was not measured on them is the other's.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ops=${1:-../shared/data/ops}
curves=cost_models/presets/curves
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT

fit() { # NAME GPU [BASE]
  ./mw calibrate --ops "$ops" --gpu "$2" ${3:+--base "$new/$3.json"} --out "$new/$1.json"
}
fit a100 A100
fit a100-pcie-80gb A100-PCIe
fit h100 H100
fit h200 H200 h100
fit b200 B200
fit b300 B300 b200
fit gb200 GB200 b200
fit gb300 GB300 b300
fit l40s L40S
mkdir -p "$curves"
mv "$new"/*.json "$curves/"
