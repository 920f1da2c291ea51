// SPDX-License-Identifier: Apache-2.0
//
// What a user gets wrong, and the whole answer: every mistake at once, exit code 2.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/cli/run_command.h"
#include "tests/in_folder.h"

namespace millwright {
namespace {

constexpr char kRest[] = " --cluster dgx-h100 --global-batch 8 --seq 4096";

class BadInput : public InFolder {
 protected:
  // The message for a job file of that text.
  static std::string OfJob(const std::string& text) {
    Write("job.json", text);
    return Of("plan job.json --model llama-3.1-8b" + std::string(kRest));
  }
  static std::string OfCluster(const std::string& text) {
    Write("cluster.json", text);
    return Of("plan --model llama-3.1-8b --cluster cluster.json --global-batch 8 --seq 4096");
  }
  static std::string Of(const std::string& line) {
    const Outcome outcome = RunCommand(line);
    EXPECT_EQ(outcome.code, 2) << line;
    EXPECT_EQ(outcome.out, "") << line;
    return outcome.err;
  }
};

TEST_F(BadInput, FileThatCannotBeRead) {
  EXPECT_EQ(Of("plan missing.json --model llama-3.1-8b" + std::string(kRest)),
            "millwright: missing.json: no such file\n");
  EXPECT_EQ(Of("estimate . --model llama-3.1-8b" + std::string(kRest)),
            "millwright: .: is a directory, not a file\n");
  EXPECT_EQ(OfJob(""), "millwright: job.json: is empty\n");
  std::string blanks;
  blanks.resize(100'000'000, ' ');
  EXPECT_EQ(OfJob(blanks), "millwright: job.json: is longer than 16 MiB, too long for a config\n");
}

TEST_F(BadInput, NotJson) {
  EXPECT_EQ(OfJob("hello"),
            "millwright: job.json: line 1, column 1: not valid JSON: while parsing value - invalid "
            "literal; last read: 'h'\n");
}

TEST_F(BadInput, UnknownKey) {
  EXPECT_EQ(OfJob(R"({"modle_from": "llama-3.1-70b"})"),
            "millwright: job.json: at /modle_from: unknown field; did you mean \"model_from\"? "
            "accepted fields: model_from, model, training, cluster, parallel, search\n");
}

TEST_F(BadInput, WrongTypesAndNumbers) {
  EXPECT_EQ(OfJob(R"({"training": {"global_batch_size": 1.5, "seq_length": "4096"}})"),
            "millwright: job.json: at /training/global_batch_size: expected an integer from 1 to "
            "1073741824, got 1.5\n"
            "millwright: job.json: at /training/seq_length: expected an integer from 1 to "
            "1073741824, got \"4096\"\n");
  EXPECT_EQ(OfJob(R"({"training": {"global_batch_size": 0, "seq_length": -1}})"),
            "millwright: job.json: at /training/global_batch_size: expected an integer from 1 to "
            "1073741824, got 0\n"
            "millwright: job.json: at /training/seq_length: expected an integer from 1 to "
            "1073741824, got -1\n");
  EXPECT_EQ(OfJob(R"({"training": {"seq_length": 9223372036854775808, "moe_imbalance": 1e400}})"),
            "millwright: job.json: at /training/seq_length: expected an integer from 1 to "
            "1073741824, got 9223372036854775808 (beyond 64 bits)\n"
            "millwright: job.json: at /training/moe_imbalance: expected a number from 1 to 1000, "
            "got 1e400 (beyond the range of a double)\n");
  EXPECT_EQ(OfJob(R"({"training": {"moe_imbalance": NaN}})"),
            "millwright: job.json: at /training/moe_imbalance: expected a number from 1 to 1000, "
            "got NaN\n");
}

TEST_F(BadInput, ClusterFile) {
  EXPECT_EQ(OfCluster(R"({"inherit": "dgx-h100", "nic_bandwidth": 400})"),
            "millwright: --cluster: cluster.json: at /nic_bandwidth: expected a number and a unit, "
            "such as \"400 Gb/s\" (units: TB/s, Tb/s, GB/s, Gb/s, MB/s, Mb/s, kB/s, B/s), got "
            "400\n");
  EXPECT_EQ(OfCluster(R"({"inherit": "dgx-h100", "nodes": 2, "fabric": "none"})"),
            "millwright: --cluster: cluster.json: at /nodes: node 0 cannot reach nodes 1 to 1: "
            "fabric is none\n");
  Write("cluster.json", R"({"inherit": "dgx-h100", "fabric": "none"})");
  EXPECT_EQ(Of("plan --model llama-3.1-8b --cluster cluster.json --nodes 4 --global-batch 8 "
               "--seq 4096"),
            "millwright: --nodes: 4 nodes of dgx-h100: nodes: node 0 cannot reach nodes 1 to 3: "
            "fabric is none\n");
}

TEST_F(BadInput, EverythingIsMissing) {
  EXPECT_EQ(Of("plan"),
            "millwright: --model: missing; give a preset or a path, or a shape by --layers, "
            "--hidden and --heads\n"
            "millwright: --cluster: missing; give a preset or a JSON file\n"
            "millwright: --global-batch: missing; give the sequences of one optimizer step\n"
            "millwright: --seq: missing; give the tokens of a sequence\n");
}

TEST_F(BadInput, NumbersOfFlags) {
  EXPECT_EQ(Of("plan --model llama-3.1-8b --cluster dgx-h100 --nodes 0 --global-batch 1e400 "
               "--seq nan --moe-imbalance nan --precision bf61 --memory-margin 200% --top 1e3"),
            "millwright: --global-batch: expected an integer between 1 and 1073741824, got "
            "\"1e400\"\n"
            "millwright: --seq: expected an integer between 1 and 1073741824, got \"nan\"\n"
            "millwright: --precision: expected one of fp16, bf16, fp8, mxfp8, nvfp4, "
            "got \"bf61\"; did you mean \"bf16\"?\n"
            "millwright: --moe-imbalance: expected a number between 1 and 1000, got \"nan\"\n"
            "millwright: --top: expected an integer between 1 and 10000, got \"1e3\"\n"
            "millwright: --memory-margin: expected a share from 0% to 99%, got "
            "\"200%\"\n"
            "millwright: --nodes: expected an integer between 1 and 262144, got \"0\"\n");
  EXPECT_EQ(Of("plan --model llama-3.1-8b --cluster dgx-h100 --gpus 99999999999999999999 "
               "--global-batch -8 --seq 4096"),
            "millwright: --gpus: expected an integer between 1 and 262144, got "
            "\"99999999999999999999\"\n"
            "millwright: --global-batch: expected an integer between 1 and 1073741824, got "
            "\"-8\"\n");
}

TEST_F(BadInput, UnknownOptionAndItsValue) {
  // 16 belongs to --nodez and is not taken for a job file.
  EXPECT_EQ(Of("plan --nodez 16 --model llama-3.1-8b" + std::string(kRest)),
            "millwright: unknown option \"--nodez\", did you mean \"--nodes\"?\n");
  EXPECT_EQ(Of("plan --nodez=16 --jsno --model llama-3.1-8b" + std::string(kRest)),
            "millwright: unknown option \"--nodez\", did you mean \"--nodes\"?\n"
            "millwright: unknown option \"--jsno\", did you mean \"--json\"?\n");
  EXPECT_EQ(Of("plan --xyzzyx --model llama-3.1-8b" + std::string(kRest)),
            "millwright: unknown option \"--xyzzyx\"; --help lists all\n");
}

TEST_F(BadInput, Values) {
  EXPECT_EQ(Of("plan --model llama-3.1-8b" + std::string(kRest) + " --nodes"),
            "millwright: --nodes: expected a value (N|A..B)\n");
  EXPECT_EQ(Of("plan --model= --nodes --json" + std::string(kRest)),
            "millwright: --model: expected a value (NAME|PATH)\n"
            "millwright: --nodes: expected a value (N|A..B)\n");
  EXPECT_EQ(Of("plan --model llama-3.1-8b --nodes 1 --nodes 2" + std::string(kRest)),
            "millwright: --nodes: given 2 times\n");
  EXPECT_EQ(Of("plan --model llama-3.1-8b --json=3" + std::string(kRest)),
            "millwright: --json: takes no value\n");
  Write("job.json", "{}");
  EXPECT_EQ(Of("plan job.json other.json --model llama-3.1-8b" + std::string(kRest)),
            "millwright: unexpected argument \"other.json\"\n");
}

TEST_F(BadInput, UnknownPresets) {
  const std::string err =
      Of("plan --model llama-3.1-70x --cluster dgx-h10 --gpu H10 "
         "--global-batch 8 --seq 4096");
  EXPECT_TRUE(
      err.starts_with("millwright: --model: model \"llama-3.1-70x\": no such preset or "
                      "file; did you mean \"llama-3.1-70b\"? presets: llama-2-7b, "))
      << err;
  EXPECT_NE(err.find("\nmillwright: --cluster: unknown cluster \"dgx-h10\", did you mean "
                     "\"dgx-h100\"?; known: dgx-a100, "),
            std::string::npos)
      << err;
}

TEST_F(BadInput, SizeOfTheCluster) {
  EXPECT_EQ(Of("plan --model llama-3.1-8b --gpus 12" + std::string(kRest)),
            "millwright: --gpus: expected a multiple of the 8 GPUs of a dgx-h100 node (8, 16), or "
            "fewer than 8, got \"12\"\n");
  EXPECT_EQ(Of("plan --model llama-3.1-8b --gpus 16 --nodes 2" + std::string(kRest)),
            "millwright: --gpus: --nodes is given too; give one of them\n");
  // 262,144 GPUs at 8 a node are 32,768 nodes.
  EXPECT_EQ(Of("plan --model llama-3.1-8b --nodes 32769" + std::string(kRest)),
            "millwright: --nodes: 32,769 nodes of dgx-h100: nodes: 32769 nodes of 8 GPUs are "
            "262152 GPUs, more than the 262144 modelled: at most 32768 nodes\n");
  EXPECT_EQ(Of("plan --model llama-3.1-8b --nodes 262144" + std::string(kRest)),
            "millwright: --nodes: 262,144 nodes of dgx-h100: nodes: 262144 nodes of 8 GPUs are "
            "2097152 GPUs, more than the 262144 modelled: at most 32768 nodes\n");
  // Bridges join pairs: three GPUs of such a box are none.
  EXPECT_EQ(Of("plan --model llama-3.1-8b --cluster h100-nvl --gpus 3 --global-batch 8 --seq 4096"),
            "millwright: --gpus: 3 of the 8 GPUs of a h100-nvl node cannot stand alone: "
            "domain_link: nvlink_bridge joins pairs: GPUs of a socket and of a PCIe switch must be "
            "even\n");
}

TEST_F(BadInput, ModelShape) {
  EXPECT_EQ(Of("plan --model llama-3.1-8b --layers 3 --heads 3" + std::string(kRest)),
            "millwright: --model: a shape (--layers, --hidden, ...) is given too; give one of "
            "them\n");
  EXPECT_EQ(Of("plan --layers 3" + std::string(kRest)),
            "millwright: --hidden: missing; a model's shape needs --layers, --hidden, --heads\n"
            "millwright: --heads: missing; a model's shape needs --layers, --hidden, --heads\n");
  EXPECT_EQ(Of("plan --layers 3 --hidden 100 --heads 3" + std::string(kRest)),
            "millwright: model shape: hidden_size: 100 is not a multiple of 3 attention heads\n");
  EXPECT_EQ(Of("plan --model gpt3-175b" + std::string(kRest)),
            "millwright: --seq: expected at most the 2048 learned positions of gpt3-175b, got "
            "\"4096\"\n");
}

TEST_F(BadInput, Filters) {
  EXPECT_EQ(Of("plan --model llama-3.1-8b --require tp=8,zp=3 --explain foo" + std::string(kRest)),
            "millwright: --require: unknown knob \"zp\"; did you mean \"tp\"? accepted: tp, sp, "
            "cp, cp_kind, pp, vpp, dp, ep, etp, micro_batch, zero, zero_shard, recompute, offload, "
            "schedule, order, cp_ulysses\n"
            "millwright: --explain: expected knob=value, got \"foo\"\n");
  const std::string expected =
      "millwright: --explain: at recompute: expected none, selective, full, full(all), full(N) or "
      "selective(MODULE,...), modules core_attn, mlp, moe, moe_act, layernorm, mla_up_proj, got ";
  const std::string of_ranks =
      "; | stands between values of which each is allowed, on any rank: what becomes of a choice "
      "for each rank says estimate --rank-recompute\n";
  EXPECT_EQ(Of("plan --model llama-3.1-8b --explain recompute=2xfull(3)|all|none|offload(2)" +
               std::string(kRest)),
            expected + "\"2xfull(3)\"" + of_ranks + expected + "\"all\"\n" + expected +
                "\"offload(2)\"; offloaded layers are a knob of their own: offload=2\n");
}

TEST_F(BadInput, OptionsGivenAndSearched) {
  EXPECT_EQ(Of("plan --model llama-3.1-8b --precision fp8 --no-tp-comm-overlap --fused-swiglu "
               "--choose precision=bf16|fp8,tp-comm-overlap=off|on" +
               std::string(kRest)),
            "millwright: --choose: precision is searched, and --precision is given too; give one "
            "of them\n"
            "millwright: --choose: tp-comm-overlap is searched, and --no-tp-comm-overlap is given "
            "too; give one of them\n");
}

TEST_F(BadInput, Recompute) {
  EXPECT_EQ(Of("estimate --model llama-3.1-8b --recompute foo" + std::string(kRest)),
            "millwright: --recompute: expected none, full, full(N) or selective(MODULE,...) of "
            "core_attn, mlp, moe, moe_act, layernorm, mla_up_proj, got \"foo\"\n");
  EXPECT_EQ(Of("estimate --model llama-3.1-8b --recompute selective" + std::string(kRest)),
            "millwright: --recompute: selective needs its modules: selective(MODULE,...)\n");
  EXPECT_EQ(Of("estimate --model llama-3.1-8b --recompute none --recompute-layers 2" +
               std::string(kRest)),
            "millwright: --recompute-layers: needs --recompute full, got \"none\"\n");
  EXPECT_EQ(
      Of("estimate --model llama-3.1-8b --recompute full --offload-layers 2" + std::string(kRest)),
      "millwright: --offload-layers: full recompute leaves nothing to offload\n");
  EXPECT_EQ(Of("estimate --model llama-3.1-8b --recompute-modules mlp" + std::string(kRest)),
            "millwright: --recompute-modules: needs --recompute selective\n");
}

TEST_F(BadInput, RankRecompute) {
  const std::string flag = "estimate --model llama-3.1-8b --pp 2 --rank-recompute ";
  const std::string rest(kRest);
  EXPECT_EQ(Of(flag + "full|none|none" + rest),
            "millwright: --rank-recompute: expected one for each of the 2 pipeline ranks, got 3\n");
  const std::string expected =
      "millwright: --rank-recompute: expected none, full, full(N), selective(MODULE,...), "
      "offload(N) or selective(MODULE,...) offload(N), or Kx before one of them for K ranks, "
      "divided by |, got ";
  // Every mistake at once.
  EXPECT_EQ(Of(flag + "fool|0xfull|2xselective|" + rest),
            expected + "\"fool\"\n" + expected + "\"0xfull\"\n" + expected + "\"2xselective\"\n" +
                expected + "\"\"\n");
  EXPECT_EQ(Of(flag + "|" + rest), expected + "\"\"\n");  // each once
  EXPECT_EQ(Of(flag + "full(4)xoffload(2)" + rest), expected + "\"full(4)xoffload(2)\"\n");
  EXPECT_EQ(Of(flag + "2xfull --recompute none" + rest),
            "millwright: --rank-recompute: --recompute is given too; give one of them\n");
  EXPECT_EQ(Of(flag + "2xfull --offload-layers 2" + rest),
            "millwright: --rank-recompute: --offload-layers is given too; give one of them\n");
  EXPECT_EQ(Of("plan --model llama-3.1-8b --recompute-by-rank --objective memory" + rest),
            "millwright: --recompute-by-rank: is for speed; give --objective throughput or cost\n");
}

TEST_F(BadInput, Out) {
  std::filesystem::create_directory("folder");
  EXPECT_EQ(Of("plan --model llama-3.1-8b --out folder" + std::string(kRest)),
            "millwright: --out: folder: is a directory, not a file\n");
  EXPECT_EQ(Of("plan --model llama-3.1-8b --out nowhere/job.json" + std::string(kRest)),
            "millwright: --out: nowhere/job.json: there is no directory nowhere\n");
  EXPECT_EQ(Of("plan --model llama-3.1-8b --out -" + std::string(kRest)),
            "millwright: --out: expected a file: standard output is the answer's\n");
}

TEST_F(BadInput, EmptyWords) {
  const std::pair<const char*, const char*> options[] = {{"--nodes", "N|A..B"},
                                                         {"--require", "KNOB=V|V,..."},
                                                         {"--out", "JOB.json"},
                                                         {"--gpu", "NAME"}};
  for (const auto& [name, shown] : options) {
    std::vector<std::string> args = Words("plan --model llama-3.1-8b" + std::string(kRest));
    args.insert(args.begin() + 1, {name, ""});
    EXPECT_EQ(RunCommand(args).err,
              "millwright: " + std::string(name) + ": expected a value (" + shown + ")\n");
  }
  EXPECT_EQ(
      RunCommand({"plan", "--model", "", "--cluster", "", "--global-batch", "8", "--seq", ""}).err,
      "millwright: --model: expected a value (NAME|PATH)\n"
      "millwright: --cluster: expected a value (NAME|PATH)\n"
      "millwright: --seq: expected a value (N)\n");
  EXPECT_EQ(RunCommand(std::vector<std::string>{"describe", ""}).err,
            "millwright: an argument is empty\n");
}

TEST_F(BadInput, SwitchedOnAndOff) {
  for (const char* both : {" --sp --no-sp", " --no-sp --sp"}) {
    EXPECT_EQ(Of("estimate --model llama-3.1-8b --tp 2" + std::string(kRest) + both),
              "millwright: --sp: --no-sp is given too; give one of them\n");
  }
}

TEST_F(BadInput, PrecisionsThatAreNotModelled) {
  for (const char* name : {"fp32", "tf32"}) {
    EXPECT_EQ(Of("plan --model llama-3.1-8b --precision " + std::string(name) + kRest),
              "millwright: --precision: expected one of fp16, bf16, fp8, mxfp8, nvfp4, got \"" +
                  std::string(name) + "\"\n");
  }
  EXPECT_EQ(OfJob(R"({"training": {"precision": "fp32"}})"),
            "millwright: job.json: at /training/precision: expected one of \"fp16\", \"bf16\", "
            "\"fp8\", \"mxfp8\", \"nvfp4\", got \"fp32\"\n");
}

TEST_F(BadInput, CalibrationOfACustomGpu) {
  constexpr char kWhat[] =
      "/gpu/calibration: expected one of \"A100\", \"H100\", \"B200\", \"B300\", \"generic\", "
      "got \"H10\"; did you mean \"H100\"?\n";
  EXPECT_EQ(OfCluster(R"({"inherit": "dgx-h100", "gpu": {"calibration": "H10"}})"),
            std::string("millwright: --cluster: cluster.json: at ") + kWhat);
  EXPECT_EQ(OfJob(R"({"cluster": {"inherit": "dgx-h100", "gpu": {"calibration": "H10"}}})"),
            std::string("millwright: job.json: at /cluster") + kWhat);
}

TEST_F(BadInput, AClusterWithoutPcieBandwidth) {
  constexpr char kWhat[] =
      "/pcie_bandwidth: must be given: GPUs reach NICs, each other or the host over PCIe\n";
  EXPECT_EQ(OfCluster(R"({"name": "ours", "gpu": {"inherit": "H100-SXM"}, "nodes": 1,
                          "gpus_per_node": 8, "domain_link": "nvswitch",
                          "nvlink_bandwidth": "450 GB/s", "nvswitches": 4})"),
            std::string("millwright: --cluster: cluster.json: at ") + kWhat);
}

TEST_F(BadInput, QuantityBeyondADouble) {
  EXPECT_EQ(OfCluster(R"({"inherit": "dgx-h100", "nic_bandwidth": "1e400 Gb/s"})"),
            "millwright: --cluster: cluster.json: at /nic_bandwidth: expected a quantity from 0 "
            "B/s to 1e+13 B/s, got \"1e400 Gb/s\" (beyond the range of a double)\n");
}

TEST_F(BadInput, FilesOfOtherKinds) {
  Write("hf.json", R"({"model_type": "llama", "hidden_size": 64})");
  Write("job.json", R"({"model_from": "llama-3.1-8b"})");
  Write("cluster.json", R"({"inherit": "dgx-h100"})");
  EXPECT_EQ(Of("plan hf.json --model llama-3.1-8b" + std::string(kRest)),
            "millwright: hf.json: is a Hugging Face config, not a job file; give it with "
            "--model\n");
  EXPECT_EQ(Of("plan cluster.json --model llama-3.1-8b" + std::string(kRest)),
            "millwright: cluster.json: is a cluster, not a job file; give it with --cluster\n");
  EXPECT_EQ(Of("plan --model job.json" + std::string(kRest)),
            "millwright: --model: job.json: is a job file, not a model; give it by itself, without "
            "an option\n");
  EXPECT_EQ(Of("plan --model llama-3.1-8b --cluster job.json --global-batch 8 --seq 4096"),
            "millwright: --cluster: job.json: is a job file, not a cluster; give it by itself, "
            "without an option\n");
  EXPECT_EQ(Of("plan --model llama-3.1-8b --cluster hf.json --global-batch 8 --seq 4096"),
            "millwright: --cluster: hf.json: is a Hugging Face config, not a cluster; give it with "
            "--model\n");
}

TEST_F(BadInput, NamesOfFilesReachTheTerminalEscaped) {
  const std::string name = "a\xff\x1b[31m.json";
  Write(name, R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 256,
                  "num_attention_heads": 8, "intermediate_size": 512, "vocab_size": 1000})");
  const std::vector<std::string> args = {"plan",     "--model",        name,      "--cluster",
                                         "dgx-h100", "--global-batch", "8",       "--seq",
                                         "1024",     "--out",          "job.json"};
  const Outcome plan = RunCommand(args);
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_NE(plan.out.find("\nModel       a\\xff\\u001b[31m, "), std::string::npos) << plan.out;
  EXPECT_EQ(plan.out.find('\x1b'), std::string::npos);
  EXPECT_EQ(RunCommand("estimate job.json").code, 0);  // the name is read back
}

TEST_F(BadInput, CommandsAndTopics) {
  EXPECT_EQ(Of("plam"),
            "millwright: unknown command \"plam\", did you mean \"plan\"?; there are plan, "
            "estimate, simulate, sweep, compare, run, measure, calibrate, validate and describe\n");
  EXPECT_EQ(Of("describe modle"),
            "millwright: unknown topic \"modle\", did you mean \"model\"?; there are models, "
            "clusters, gpus, schedules, model, cluster, gpu, schedule, job, training, parallel, "
            "filters, plan, estimate\n");
  EXPECT_EQ(Of("describe gpu"),
            "millwright: describe gpu: expected a name or a path; describe gpus lists the "
            "presets\n");
  EXPECT_EQ(Of("describe job x"), "millwright: describe job: unexpected argument \"x\"\n");
  EXPECT_EQ(Of("describe gpu h200 --pp 4 --costs F=1"),
            "millwright: --pp: goes with describe schedule\n"
            "millwright: --costs: goes with describe schedule\n");
  const Outcome nothing = RunCommand(std::vector<std::string>{});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_TRUE(nothing.err.starts_with("Usage: millwright COMMAND ...\n"));
}

TEST_F(BadInput, MistakesOfFileAndFlagsTogether) {
  Write("job.json", R"({"training": {"seq_length": 0}})");
  EXPECT_EQ(Of("estimate job.json --model llama-3.1-8b --cluster dgx-h100 --global-batch 0"),
            "millwright: --global-batch: expected an integer between 1 and 1073741824, got \"0\"\n"
            "millwright: job.json: at /training/seq_length: expected an integer from 1 to "
            "1073741824, got 0\n");
}

}  // namespace
}  // namespace millwright
