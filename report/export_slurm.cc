// SPDX-License-Identifier: Apache-2.0
//
// An sbatch script that starts a plan's ranks with torchrun, one launcher a host.
//
// torchrun's options: PyTorch, docs/source/elastic/run.rst.  Ranks are numbered host by host in the
// order of Slurm's node list, and Megatron, torchtitan and Millwright all put tensor innermost,
// then context, data, and pipeline outermost, but for Megatron's --use-tp-pp-dp-mapping, where data
// is.

#include <fmt/format.h>

#include "report/export_notes.h"
#include "report/megatron_settings.h"

namespace millwright {

void ExportSlurm(const Job& job, Exported& exported) {
  ExportNotes notes(ExportFormat::kSlurm, exported);
  const Hosts hosts = HostsOf(job.cluster);
  const ParallelConfig& p = job.parallel;
  if (hosts.gpus != job.cluster.gpus_per_node) {
    notes.Cannot(
        "cluster",
        fmt::format("an NVLink domain of {} GPUs is taken to be {} hosts of {}; have the "
                    "scheduler give whole domains, in order",
                    job.cluster.gpus_per_node, job.cluster.gpus_per_node / hosts.gpus, hosts.gpus));
  }
  NoteWhatRuns(job, notes);  // megatron_args.sh, which this starts
  std::string text = "#!/bin/bash\n";
  text += fmt::format(
      "#SBATCH --job-name=millwright\n#SBATCH --nodes={}\n#SBATCH --ntasks-per-node=1\n"
      "#SBATCH --gpus-per-node={}\n#SBATCH --exclusive\n#SBATCH --time=01:00:00\n#\n",
      hosts.count, hosts.gpus);
  text += notes.Head(
      job, "Slurm script", "sbatch and torchrun (PyTorch 2), one launcher a host",
      "Use: sbatch run.sbatch, in the folder of megatron_args.sh, with your account, partition and "
      "data options added.");
  const std::string data = fmt::format("data (dp {})", p.data);
  const std::string pipeline = fmt::format("pipeline (pp {})", p.pipeline);
  const bool inside = p.placed_otherwise();
  text += fmt::format(
      "#\n# Ranks: from the innermost, tensor (tp {}), context (cp {}), {}, {};\n"
      "# hosts in the order of the node list, so keep hosts of one leaf switch together.\n",
      p.tensor, p.context, inside ? pipeline : data, inside ? data : pipeline);
  text +=
      "set -euo pipefail\n"
      "source \"${SLURM_SUBMIT_DIR:-.}/megatron_args.sh\"\n"
      "head_node=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\n";
  // Before Blackwell Megatron asks for 1 where tp or cp is above 1, but for FSDP, which wants more,
  // and for the experts' exchange under compute, with which 32 is taken too.
  if ((p.tensor > 1 || p.context > 1) && !WrittenAsFsdp(p)) {
    text += fmt::format("export CUDA_DEVICE_MAX_CONNECTIONS={}\n",
                        WrittenExpertOverlap(job.model, job.training, p) ? 32 : 1);
  }
  text += fmt::format(
      "srun torchrun --nnodes={} --nproc-per-node={} \\\n"
      "  --rdzv-id=\"$SLURM_JOB_ID\" --rdzv-backend=c10d --rdzv-endpoint=\"$head_node:29500\" \\\n"
      "  pretrain_gpt.py \"${{MEGATRON_ARGS[@]}}\"\n",
      hosts.count, hosts.gpus);
  notes.AddFile("run.sbatch", text);
}

}  // namespace millwright
