// SPDX-License-Identifier: Apache-2.0
#include "report/export.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>

#include "core/model_presets.h"
#include "planner/estimator.h"
#include "planner/feasibility.h"
#include "planner/megatron_args.h"
#include "report/export_notes.h"
#include "report/megatron_settings.h"
#include "sim/schedule.h"

namespace millwright {
namespace {

using testing::HasSubstr;
using testing::Not;

Job MakeJob(const std::string& model, int nodes, const ParallelConfig& plan) {
  Job job;
  job.model = PresetModel(model);
  job.cluster = FindCluster("dgx-h100");
  job.cluster.nodes = nodes;
  job.training = {.global_batch_size = 64, .seq_length = 8192};
  job.parallel = plan;
  job.has_model = job.has_cluster = job.has_training = job.has_parallel = true;
  return job;
}

std::string FileOf(const Exported& exported, const std::string& name) {
  for (const ExportedFile& file : exported.files) {
    if (file.name == name) return file.text;
  }
  ADD_FAILURE() << "no file " << name;
  return {};
}

Exported ExportOnly(const Job& job, ExportFormat format) {
  return Export(job, std::vector<ExportFormat>{format});
}

TEST(PipelineLayout, GroupsEqualStages) {
  // Megatron's own reading of it: stages between '|', t*N for N layers, (x)*N for x N times.
  EXPECT_EQ(PipelineLayout({4}, 0), "Et*4L");
  EXPECT_EQ(PipelineLayout({1, 1}, 0), "Et|tL");
  EXPECT_EQ(PipelineLayout({7, 8, 8, 8, 7}, 0), "Et*7|(t*8|)*3t*7L");
  EXPECT_EQ(PipelineLayout({0, 1, 2, 2, 0}, 1), "E|t|(t*2|)*2mL");
}

TEST(PipelineLayout, IsReadBack) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<int> layers(1 + random() % 12);
    for (int& n : layers) n = int(random() % 3);
    const int mtp = int(random() % 3);
    const std::vector<LayoutStage> stages = ParsePipelineLayout(PipelineLayout(layers, mtp));
    ASSERT_EQ(stages.size(), layers.size());
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const bool last = i + 1 == stages.size();
      EXPECT_EQ(stages[i], (LayoutStage{.layers = layers[i],
                                        .mtp_layers = last ? mtp : 0,
                                        .embedding = i == 0,
                                        .loss = last}));
    }
  }
}

TEST(ExportMegatron, UnevenLayersAreALayout) {
  // 126 layers over 8 x 8 chunks: as if embedding and loss were layers, 128 / 64 = 2 each, so that
  // the first and the last chunk hold one.
  const Job job = MakeJob("llama-3.1-405b", 16,
                          {.tensor = 8,
                           .sequence_parallel = true,
                           .pipeline = 8,
                           .virtual_stages = 8,
                           .data = 2,
                           .schedule = ScheduleKind::kInterleaved});
  const std::string text = FileOf(ExportOnly(job, ExportFormat::kMegatron), "megatron_args.sh");
  EXPECT_THAT(text, HasSubstr("\n  --pipeline-model-parallel-layout 'Et|(t*2|)*62tL'\n"));
  EXPECT_THAT(text, HasSubstr("\n  --tensor-model-parallel-size 8\n  --sequence-parallel\n"));
  EXPECT_THAT(text, HasSubstr("\nNNODES=16\nGPUS_PER_NODE=8\n"));
  EXPECT_THAT(text, Not(HasSubstr("Not said here")));
}

TEST(ExportMegatron, SaysWhatItCannotSay) {
  Job job = MakeJob("llama-3.1-8b", 2, {.pipeline = 4, .data = 4, .schedule = ScheduleKind::kZbH1});
  job.training.fused_swiglu = true;
  job.model.name = "a\nb";  // a name is no way out of a comment
  const Exported exported = ExportOnly(job, ExportFormat::kMegatron);
  ASSERT_EQ(exported.unexpressed.size(), 2U);
  EXPECT_EQ(UnexpressedLine(exported.unexpressed[0]),
            "Megatron-LM cannot be told parallel.schedule: it has 1F1B and interleaved 1F1B only, "
            "not zb-h1");
  EXPECT_EQ(UnexpressedLine(exported.unexpressed[1]),
            "Megatron-LM cannot be told training.fused_swiglu: the gated product is kept");
  const std::string text = FileOf(exported, "megatron_args.sh");
  EXPECT_THAT(text, HasSubstr("\n# - training.fused_swiglu: the gated product is kept\n"));
  EXPECT_THAT(text, HasSubstr("for a\\u000ab on"));
}

TEST(ExportTorchtitan, ScheduleIsTorchsForm) {
  // ZB-H1, p 2, m 2: rank 0 runs F0 F1, then each micro-batch's B and W apart.
  Job job = MakeJob("llama-3.1-8b", 1, {.pipeline = 2, .data = 4, .schedule = ScheduleKind::kZbH1});
  job.training.global_batch_size = 8;
  const Exported exported = ExportOnly(job, ExportFormat::kTorchtitan);
  std::istringstream csv(FileOf(exported, "pipeline_schedule.csv"));
  const PipelineSchedule schedule =
      BuildSchedule({.kind = ScheduleKind::kZbH1, .pipeline = 2, .micro_batches = 2});
  for (const std::vector<Pass>& order : schedule.orders) {
    std::string line, expected;
    ASSERT_TRUE(std::getline(csv, line));
    for (const Pass& pass : order) {
      const char letter = "FBIW"[static_cast<int>(pass.kind)];
      if (!expected.empty()) expected += ',';
      expected += std::to_string(pass.stage) + letter + std::to_string(pass.micro_batch);
    }
    EXPECT_EQ(line, expected);
  }
  EXPECT_THAT(FileOf(exported, "pipeline_schedule.csv"), testing::StartsWith("0F0,0F1,0I0,"));
  const std::string toml = FileOf(exported, "torchtitan.toml");
  EXPECT_THAT(toml, HasSubstr("\npipeline_parallel_schedule = \"InterleavedZeroBubble\"\n"));
  EXPECT_THAT(toml, HasSubstr("\npipeline_parallel_schedule_csv = \"pipeline_schedule.csv\"\n"));
  EXPECT_THAT(toml, HasSubstr("\nlocal_batch_size = 2\nglobal_batch_size = 8\nseq_len = 8192\n"));
  EXPECT_THAT(toml, HasSubstr("\nname = \"llama3\"\nflavor = \"8B\"\n"));
}

TEST(ExportTorchtitan, HsdpIsInContextGroups) {
  // 32 ranks: dp 16 x cp 2; shards of 8 ranks are 4 data ranks, and 16 / 4 replicas.
  const Job job =
      MakeJob("llama-3.1-8b", 4, {.context = 2, .data = 16, .zero = 3, .zero_shard = 8});
  const std::string toml = FileOf(ExportOnly(job, ExportFormat::kTorchtitan), "torchtitan.toml");
  EXPECT_THAT(toml, HasSubstr("\ndata_parallel_replicate_degree = 4\ndata_parallel_shard_degree = "
                              "4\nfsdp_reshard_after_forward = \"always\"\n"));
  EXPECT_THAT(toml, HasSubstr("\ncontext_parallel_degree = 2\n"
                              "context_parallel_rotate_method = \"alltoall\"\n"));
}

TEST(ExportDeepSpeed, BatchesMultiply) {
  // DeepSpeed refuses anything but train = micro x accumulation x data-parallel ranks.
  const Job job = MakeJob("llama-3.1-8b", 2, {.data = 16, .micro_batch_size = 2, .zero = 3});
  const auto json =
      nlohmann::json::parse(FileOf(ExportOnly(job, ExportFormat::kDeepSpeed), "deepspeed.json"));
  EXPECT_EQ(json["train_batch_size"], 64);
  EXPECT_EQ(json["train_micro_batch_size_per_gpu"], 2);
  EXPECT_EQ(json["gradient_accumulation_steps"], 2);  // 64 / (16 x 2)
  EXPECT_EQ(json["zero_optimization"]["stage"], 3);
  EXPECT_EQ(json["bf16"]["enabled"], true);
  EXPECT_EQ(json["data_types"]["grad_accum_dtype"], "fp32");
}

TEST(ExportBridge, HasBridgesNames) {
  const Job job = MakeJob("deepseek-v3", 8, {.pipeline = 4, .data = 16, .expert = 16});
  const std::string yaml = FileOf(ExportOnly(job, ExportFormat::kBridge), "megatron_bridge.yaml");
  for (const char* line :
       {"\nmixed_precision: bf16_mixed\n", "\n  num_moe_experts: 256\n",
        "\n  share_embeddings_and_output_weights: false\n", "\n  activation_func: silu\n",
        "\n  moe_layer_freq: \"([0]*3+[1]*58)\"\n", "\n  global_batch_size: 64\n",
        "\n  add_bias_linear: false\n", "\n  expert_model_parallel_size: 16\n"}) {
    EXPECT_THAT(yaml, HasSubstr(line));
  }
}

TEST(Export, NestedContextParallelism) {
  ParallelConfig plan{.context = 16, .context_kind = ContextParallelKind::kNested};
  plan.context_ulysses = 8;
  const Job job = MakeJob("llama-3.1-8b", 2, plan);
  const Exported megatron = ExportOnly(job, ExportFormat::kMegatron);
  EXPECT_THAT(megatron.unexpressed, testing::IsEmpty());
  EXPECT_THAT(FileOf(megatron, "megatron_args.sh"),
              HasSubstr("\n  --context-parallel-size 16\n  --cp-comm-type 'a2a+p2p'\n"
                        "  --hierarchical-context-parallel-sizes 8 2\n"));
  const std::string yaml = FileOf(ExportOnly(job, ExportFormat::kBridge), "megatron_bridge.yaml");
  EXPECT_THAT(yaml, HasSubstr("\n  cp_comm_type: \"a2a+p2p\"\n"));
  EXPECT_THAT(yaml, HasSubstr("\n  hierarchical_context_parallel_sizes: [8, 2]\n"));
  for (const auto& [format, why] :
       {std::pair(ExportFormat::kTorchtitan, "keys and values rotate, heads are not exchanged"),
        std::pair(ExportFormat::kFsdp, "keys and values go around, heads are not exchanged")}) {
    const Exported exported = ExportOnly(job, format);
    EXPECT_TRUE(std::any_of(exported.unexpressed.begin(), exported.unexpressed.end(),
                            [&](const Unexpressed& u) {
                              return u.field == "parallel.context_parallel_kind" && u.why == why;
                            }));
  }
}

// Of 8 KV heads a tensor rank of 4 has two, which 8 ranks of an all-to-all would have to copy.
TEST(Export, HeadsThatTransformerEngineDoesNotExchange) {
  const auto notes = [](int tensor, int context, int ulysses) {
    ParallelConfig plan{.tensor = tensor, .context = context};
    plan.context_kind = ulysses > 0 ? ContextParallelKind::kNested : ContextParallelKind::kUlysses;
    plan.context_ulysses = ulysses;
    std::string text;
    for (const Unexpressed& u :
         ExportOnly(MakeJob("llama-3.1-8b", 2, plan), ExportFormat::kMegatron).unexpressed) {
      if (u.field == "parallel.context_parallel_kind") text += u.why + "\n";
    }
    return text;
  };
  EXPECT_EQ(notes(4, 2, 0), "");
  EXPECT_EQ(notes(4, 4, 0),
            "--cp-comm-type a2a: Transformer Engine asserts that KV heads divide by the ranks that "
            "exchange them, and 2 of a tensor rank do not divide by 4\n");
  EXPECT_EQ(notes(1, 16, 8), "");
  EXPECT_EQ(notes(4, 4, 2), "");
  EXPECT_EQ(notes(2, 8, 4), "");
}

TEST(ExportSlurm, RacksAreHostsOfTrays) {
  // Two racks of 72 GPUs are 2 x 18 compute trays of 4.
  Job job = MakeJob("llama-3.1-8b", 1, {.tensor = 8, .sequence_parallel = true, .data = 18});
  job.cluster = FindCluster("gb200-nvl72");
  job.cluster.nodes = 2;
  const Exported exported = ExportOnly(job, ExportFormat::kSlurm);
  const std::string text = FileOf(exported, "run.sbatch");
  EXPECT_THAT(text, HasSubstr("\n#SBATCH --nodes=36\n"));
  EXPECT_THAT(text, HasSubstr("\n#SBATCH --gpus-per-node=4\n"));
  EXPECT_THAT(text, HasSubstr("\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\n"));
  ASSERT_EQ(exported.unexpressed.size(), 1U);
  EXPECT_EQ(exported.unexpressed[0].field, "cluster");
}

TEST(ExportFormats, AreNamed) {
  EXPECT_EQ(ParseExportFormats("slurm,megatron,slurm"),
            (std::vector<ExportFormat>{ExportFormat::kSlurm, ExportFormat::kMegatron}));
  try {
    ParseExportFormats("megatrn,");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(),
                 "expected some of megatron, bridge, torchtitan, deepspeed, fsdp, slurm, got "
                 "\"megatrn\"; did you mean \"megatron\"?\n"
                 "expected some of megatron, bridge, torchtitan, deepspeed, fsdp, slurm, got \"\"");
  }
}

class ExportedFolder : public testing::Test {
 protected:
  ExportedFolder()
      : folder_(std::filesystem::temp_directory_path() /
                (std::string("export_test_") +
                 testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(folder_);
  }
  ~ExportedFolder() override { std::filesystem::remove_all(folder_); }
  static std::string Read(const std::filesystem::path& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::filesystem::path folder_;
};

TEST_F(ExportedFolder, IsMadeAndItsFilesAreReplaced) {
  const std::string folder = folder_ / "a" / "b";
  WriteExported(folder, std::vector<ExportedFile>{{"x", "1"}, {"y", "2"}});
  WriteExported(folder, std::vector<ExportedFile>{{"y", "3"}});
  EXPECT_EQ(Read(folder_ / "a/b/x"), "1");
  EXPECT_EQ(Read(folder_ / "a/b/y"), "3");
}

TEST_F(ExportedFolder, StaysAsItWasWhereAFileCannotBeWritten) {
  // The second name is a folder's, so neither appears.
  std::filesystem::create_directories(folder_ / "y");
  EXPECT_THROW(WriteExported(folder_, std::vector<ExportedFile>{{"x", "1"}, {"y", "2"}}),
               ConfigError);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "x"));
  // Nor does the folder where there was none.
  EXPECT_THROW(WriteExported(folder_ / "new", std::vector<ExportedFile>{{"none/x", "1"}}),
               ConfigError);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
}

TEST_F(ExportedFolder, IsNoFile) {
  std::ofstream(folder_) << "a file";
  try {
    CheckFolderWritable(folder_);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.what(), folder_.string() + ": is a file; with --export a folder is expected");
  }
  EXPECT_THROW(CheckFolderWritable(folder_ / "below"), ConfigError);
}

// --- round trip

template <class T>
nlohmann::json JsonOf(T value) {
  return nlohmann::json::parse(WriteConfig([&](ConfigIo& io) { Fields(io, value); }));
}

// The fields in which the two differ, "training.state".
template <class T>
std::vector<std::string> Differences(const std::string& part, const T& a, const T& b) {
  const nlohmann::json left = JsonOf(a), right = JsonOf(b);
  std::vector<std::string> fields;
  for (const auto& [key, value] : left.items()) {
    if (!right.contains(key) || right[key] != value)
      fields.push_back(fmt::format("{}.{}", part, key));
  }
  for (const auto& [key, value] : right.items()) {
    if (!left.contains(key)) fields.push_back(fmt::format("{}.{}", part, key));
  }
  return fields;
}

class RandomJobs {
 public:
  explicit RandomJobs(unsigned seed) : random_(seed) {
    for (const ModelPreset& preset : ModelPresets()) names_.emplace_back(preset.name);
  }
  // Passes CheckPlan.
  Job Next() {
    while (true) {
      Job job = Any();
      if (!CheckPlan(job.model, job.training, job.cluster.gpu, job.cluster.gpus(), job.parallel)) {
        return job;
      }
    }
  }

 private:
  template <class T>
  T OneOf(std::initializer_list<T> values) {
    return *(values.begin() + random_() % values.size());
  }
  bool Coin() { return random_() % 2 == 0; }
  bool Seldom() { return random_() % 8 == 0; }

  Job Any() {
    Job job = MakeJob(names_[random_() % names_.size()], OneOf({1, 2, 4, 8}), {});
    job.cluster.gpu = FindGpu("B200");  // has every precision
    job.training.seq_length = OneOf({1024, 2048, 4096});
    job.training.global_batch_size = OneOf({64, 128, 256});
    TrainingConfig& t = job.training;
    t.precision = OneOf({Precision::kBf16, Precision::kBf16, Precision::kFp16, Precision::kFp8,
                         Precision::kMxfp8, Precision::kNvfp4});
    t.gradient_bytes = Coin() ? 4 : Seldom() ? 3 : 2;
    t.moment_bytes = Coin() ? 8 : OneOf({2.0, 3.0, 4.0, 5.0, 6.0, 7.0});
    t.flash_attention = !Seldom();
    t.bf16_weights = Seldom();
    t.fused_swiglu = Seldom();
    t.fp8_activation_store = Coin();
    t.fused_cross_entropy = Coin();
    t.cuda_graph = OneOf({CudaGraph::kNone, CudaGraph::kPartial, CudaGraph::kFull});
    t.overlap_grad_reduce = Coin();
    t.overlap_param_gather = Coin();
    t.overlap_p2p = Coin();
    t.tp_comm_overlap = Coin();
    t.cp_comm_overlap = !Seldom();
    t.expert_overlap = Coin();
    t.moe_token_drop = Coin();
    t.moe_dispatcher = Coin() ? MoeDispatcher::kDeepEp : MoeDispatcher::kAllToAll;
    t.moe_imbalance = Seldom() ? 1.5 : 1;
    t.state = Seldom() ? StateScheme::kFsdp : StateScheme::kMegatron;
    t.framework = Seldom() ? Framework::kFsdp : Framework::kMegatron;
    t.launch_blocking = Seldom();
    t.flash_kernel = Seldom() ? FlashKernel::kFlash2 : FlashKernel::kNewest;
    t.mfu_convention = Seldom() ? MfuConvention::kFull : MfuConvention::kCausal;

    ParallelConfig& p = job.parallel;
    p.tensor = OneOf({1, 2, 4, 8});
    p.sequence_parallel = p.tensor > 1 && (job.model.has_moe() || Coin());
    p.context = OneOf({1, 1, 2, 4});
    p.context_kind = Coin() ? ContextParallelKind::kRing : ContextParallelKind::kUlysses;
    if (p.context == 4 && Coin()) {
      p.context_kind = ContextParallelKind::kNested;
      p.context_ulysses = 2;
    }
    p.pipeline = OneOf({1, 2, 4});
    p.virtual_stages = p.pipeline > 1 ? OneOf({1, 1, 2, 3, 5}) : 1;
    p.schedule = p.virtual_stages > 1 ? ScheduleKind::kInterleaved
                 : Seldom()
                     ? OneOf({ScheduleKind::kZbH1, ScheduleKind::kDualPipeV, ScheduleKind::kGpipe})
                     : ScheduleKind::k1F1B;
    if (p.pipeline > 1 && Seldom()) {
      const int stages = StagesPerCopy(p), layers = job.model.num_layers;
      p.stage_layers.assign(std::size_t(stages), layers / stages);
      p.stage_layers.front() += layers % stages + 1;
      --p.stage_layers.back();
    }
    p.data = std::max<int>(1, int(job.cluster.gpus()) / (p.tensor * p.context * p.pipeline));
    p.expert = job.model.has_moe() ? OneOf({1, 2, 4, 8}) : 1;
    p.expert_tensor = job.model.has_moe() ? OneOf({1, 1, 2}) : 1;
    p.micro_batch_size = OneOf({1, 2});
    p.zero = OneOf({0, 1, 1, 2, 3});
    p.zero_shard = p.zero > 0 && Coin() ? std::max(1, p.data * p.context / 2) : 0;
    p.order = Coin() ? RankOrder::kPipelineInside : RankOrder::kDataInside;
    Recompute& r = p.recompute;
    r.granularity = OneOf({RecomputeGranularity::kNone, RecomputeGranularity::kSelective,
                           RecomputeGranularity::kFull});
    if (r.granularity == RecomputeGranularity::kFull) r.full_layers = OneOf({0, 1, 3});
    if (r.granularity != RecomputeGranularity::kFull && Seldom()) r.offload_layers = 2;
    if (r.granularity == RecomputeGranularity::kSelective) {
      r.modules = {OneOf({RecomputeModule::kCoreAttn, RecomputeModule::kMlp})};
      r.modules.push_back(RecomputeModule::kLayerNorm);
      if (job.model.has_moe()) r.modules.push_back(RecomputeModule::kMoeAct);
      if (job.model.latent) r.modules.push_back(RecomputeModule::kMlaUpProj);
    }
    if (p.pipeline > 1 && Seldom()) {
      p.rank_recompute.resize(std::size_t(p.pipeline));
      p.rank_recompute.front() = std::exchange(r, {});
    }
    return job;
  }

  std::mt19937 random_;
  std::vector<std::string> names_;
};

TEST(ExportMegatron, RoundTripsButForWhatItSays) {
  RandomJobs jobs(20261129);
  std::set<std::string> seen;
  int other_schedules = 0;
  for (int round = 0; round < 600; ++round) {
    const Job job = jobs.Next();
    const Exported exported = ExportOnly(job, ExportFormat::kMegatron);
    const std::string text = FileOf(exported, "megatron_args.sh");
    std::set<std::string> said;
    for (const Unexpressed& u : exported.unexpressed) {
      said.insert(u.field);
      if (u.field.starts_with("model.moe.")) said.insert("model.moe");
      if (u.field == "parallel.rank_recompute") said.insert("parallel.recompute");
      if (u.field == "parallel.schedule") ++other_schedules;
    }
    seen.insert(said.begin(), said.end());

    ImportedRun run;
    try {
      run = ReadMegatronArgs("megatron_args.sh", text);
    } catch (const ConfigError& error) {
      FAIL() << error.what() << "\n" << text;
    }
    EXPECT_EQ(run.gpus, job.cluster.gpus());
    std::vector<std::string> problems;
    Job again = PlacedOn(run, *run.gpus, problems);
    EXPECT_TRUE(problems.empty());
    // The whole of the ranks is one copy, by either spelling.
    if (job.parallel.zero_shard == job.parallel.data * job.parallel.context) {
      again.parallel.zero_shard = job.parallel.zero_shard;
    }
    again.model.name = job.model.name;
    again.model.architecture = job.model.architecture;
    for (const auto& fields : {Differences("training", job.training, again.training),
                               Differences("parallel", job.parallel, again.parallel),
                               Differences("model", job.model, again.model)}) {
      for (const std::string& field : fields) {
        EXPECT_TRUE(said.contains(field)) << field << " of\n" << text << WriteJob(again);
      }
    }
    // Heads that are not exchanged are said both ways.
    EXPECT_EQ(run.warnings.size(), said.count("parallel.context_parallel_kind")) << text;
    if (HasFailure()) return;
  }
  // What can be said of a plan by Megatron's options, the plans above have had said.
  EXPECT_GE(seen.size(), 15U);
  EXPECT_GE(other_schedules, 10);
}

TEST(Export, EveryFormatTakesEveryPlan) {
  RandomJobs jobs(3);
  std::vector<ExportFormat> all;
  for (const auto& n : ExportFormatNames()) all.push_back(n.value);
  for (int round = 0; round < 100; ++round) {
    const Job job = jobs.Next();
    const Exported exported = Export(job, all);
    std::set<std::string> names;
    for (const ExportedFile& file : exported.files) {
      EXPECT_TRUE(names.insert(file.name).second);
      EXPECT_FALSE(file.text.empty());
      EXPECT_EQ(file.text.back(), '\n');
    }
    EXPECT_GE(names.size(), 7U);
  }
}

}  // namespace
}  // namespace millwright
