// SPDX-License-Identifier: Apache-2.0
#include "validate/executed_runs.h"

#include <gtest/gtest.h>

#include <fstream>

#include "runtime/communicator.h"
#include "tests/in_folder.h"
#include "tests/runtime/tiny_workload.h"
#include "tests/validate/made_up_curves.h"

namespace millwright {
namespace {

Job TinyJob(const ModelConfig& model, const ParallelConfig& parallel) {
  Job job{.has_model = true,
          .model = model,
          .has_training = true,
          .training = {.global_batch_size = 4, .seq_length = 16},
          .has_cluster = true,
          .cluster = FindCluster("local-cpu"),
          .has_parallel = true,
          .parallel = parallel};
  job.cluster.gpus_per_node = job.cluster.gpus_per_pcie_switch = int(parallel.gpus());
  return job;
}

// Executed on threads, and what is recorded of it.
ExecutedRun Executed(const Job& job) {
  Workload workload = ExecutableWorkload(job, 1);
  workload.graph = GraphOf(job, workload.schedule);
  ExecutedRun run{.job = job,
                  .backend = RunBackend::kThreads,
                  .machine = "a machine",
                  .calibration = MadeUpCurves().provenance,
                  .steps = 3};
  RunThreads(workload.ranks(), [&](Communicator& communicator) {
    const RunOutcome outcome = RunSteps(workload, {.steps = 3, .record = true}, communicator);
    if (communicator.rank() != 0) return;
    run.step = outcome.recorded.number + 1;
    run.measured = Measured(outcome.recorded);
  });
  return run;
}

TEST(ExecutedRun, SurvivesItsFile) {
  for (const Job& job :
       {TinyJob(TinyModel(), {.tensor = 2, .pipeline = 2, .schedule = ScheduleKind::kZbH1}),
        TinyJob(TinyMoe(24), {.data = 2, .expert = 2})}) {
    const ExecutedRun run = Executed(job);
    EXPECT_EQ(run.measured.ranks, int(job.parallel.gpus()));
    const std::string written = WriteExecutedRun(run);
    const ExecutedRun read = ParseExecutedRun("run.json", written);
    EXPECT_EQ(read.measured, run.measured);
    EXPECT_EQ(read.machine, "a machine");
    EXPECT_EQ(read.job.parallel, job.parallel);
    EXPECT_EQ(WriteExecutedRun(read), written);

    // And so does what is said of it.
    const Workload workload = ExecutableWorkload(job, 1);
    const GpuCurves curves = MadeUpCurves();
    const ExecutedComparison a = PredictRun(run, workload, curves, "cpu.json").comparison;
    const ExecutedComparison b = PredictRun(read, workload, curves, "cpu.json").comparison;
    EXPECT_EQ(a.predicted, b.predicted);
    EXPECT_EQ(a.processor, b.processor);
    ASSERT_EQ(a.operators.size(), b.operators.size());
    for (std::size_t i = 0; i < a.operators.size(); ++i) {
      EXPECT_EQ(a.operators[i].name, b.operators[i].name);
      EXPECT_EQ(a.operators[i].measured, b.operators[i].measured);
    }
  }
}

std::string MessageOf(const std::string& text) {
  try {
    ParseExecutedRun("run.json", text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// `text` with its one `from` replaced.
std::string With(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ExecutedRun, EveryMistakeAtOnce) {
  ExecutedRun run{.job = TinyJob(TinyModel(), {}), .backend = RunBackend::kThreads};
  run.measured = {.step = Seconds(0.5),
                  .ranks = 1,
                  .operators = {{.name = "qkv", .calls = 16, .measured = Seconds(0.25)}},
                  .streams = {}};
  run.measured.streams[0].measured = Seconds(0.25);
  const std::string text = WriteExecutedRun(run);
  EXPECT_EQ(MessageOf(text), "");
  std::string wrong = With(text, "\"step_s\": 0.5", "\"step_s\": 0");
  wrong = With(wrong, "\"backend\": \"threads\"", "\"backend\": \"treads\"");
  wrong = With(wrong, "\"calls\": 16", "\"call\": 16");
  wrong = With(wrong, "\"stream\": \"compute\"", "\"stream\": \"computes\"");
  wrong = With(wrong, "\"num_layers\": 4", "\"num_layers\": 0");
  EXPECT_EQ(
      MessageOf(wrong),
      "run.json: at /executed/backend: expected one of \"mpi\", \"threads\", \"cuda\", got "
      "\"treads\"; did you mean \"threads\"?\n"
      "run.json: at /executed/step_s: expected a number above 0 and at most 1e+06, got 0\n"
      "run.json: at /executed/operators/0/calls: expected an integer from 1 to 1099511627776, "
      "got nothing (this field is required)\n"
      "run.json: at /executed/operators/0/call: unknown field; did you mean \"calls\"? "
      "accepted fields: operator, pass, calls, measured_s, processor_s\n"
      "run.json: at /executed/streams/0/stream: expected one of \"compute\", \"tensor\", "
      "\"context\", \"expert\", \"send\", \"receive\", \"data\", \"to host\", \"from host\", got "
      "\"computes\"; did you "
      "mean \"compute\"?\n"
      "run.json: at /job/model/num_layers: expected an integer from 1 to 10000, got 0");
  EXPECT_EQ(MessageOf("{}"),
            "run.json: at /executed: expected an object, got nothing (this field is required)\n"
            "run.json: at /job: expected an object, got nothing (this field is required)");
  EXPECT_EQ(MessageOf("[1]"), "run.json: expected an object, got [1]");
  EXPECT_EQ(MessageOf(WriteJob(run.job)),
            "run.json: is a job file, not an executed run; give it by itself, without an option");
  ExecutedRun twice = run;
  twice.measured.operators.push_back(twice.measured.operators.front());
  EXPECT_EQ(MessageOf(WriteExecutedRun(twice)),
            "run.json: at /executed/operators: expected each operator and pass once, got forward "
            "\"qkv\" twice");
  ExecutedRun refused = run;
  refused.job.model.hidden_dropout = true;
  refused.job.model.post_layer_norms = true;
  EXPECT_EQ(MessageOf(WriteExecutedRun(refused)),
            "run.json: at /job: run does not execute norms on a layer's outputs yet\n"
            "run.json: at /job: run does not execute dropout yet");
  ExecutedRun unfit = run;
  unfit.job = TinyJob(TinyModel(), {.tensor = 3});
  EXPECT_EQ(MessageOf(WriteExecutedRun(unfit)),
            "run.json: at /job/parallel: expected a plan that can run: 8 attention heads are not "
            "divisible by tp 3");
}

// Two runs: predicted 8 ms of measured 10, of which a rank had a processor for 8; and 12 of 10,
// without one.  Errors -20% and +20%; the median of either sign is 20%, the bias 0.
TEST(ExecutedRuns, Statistics) {
  ExecutedRunsReport report;
  const auto ms = [](double milliseconds) { return Seconds(1e-3 * milliseconds); };
  ExecutedRunResult slow{.file = "a.json", .run = {}, .comparison = {}};
  slow.comparison.predicted = ms(8);
  slow.comparison.measured = ms(10);
  slow.comparison.processor = ms(8);
  slow.comparison.operators = {
      {.name = "fc1", .calls = 4, .predicted = ms(3), .measured = ms(5), .processor = ms(4)},
      {.name = "fc1", .backward = true, .calls = 4, .predicted = ms(5), .measured = ms(4)}};
  ExecutedRunResult fast = slow;
  fast.comparison.predicted = ms(12);
  fast.comparison.processor = Seconds(0);
  fast.comparison.operators.pop_back();
  fast.comparison.operators.push_back({.name = "send", .measured = ms(1)});
  report.results = {slow, fast};
  Summarise(report);
  EXPECT_EQ(report.steps.n, 2U);
  EXPECT_NEAR(report.steps.median_ape, 0.2, 1e-12);
  EXPECT_NEAR(report.steps.p90_ape, 0.2, 1e-12);
  EXPECT_NEAR(report.steps.bias, 0, 1e-12);
  EXPECT_EQ(report.of_processor.n, 1U);
  EXPECT_NEAR(report.of_processor.median_ape, 0, 1e-12);
  // By what they are off: fc1 forward 2 x 2 ms, then 1 ms each, in the order of their names.
  ASSERT_EQ(report.operators.size(), 3U);
  EXPECT_EQ(report.operators[0].name, "fc1");
  EXPECT_FALSE(report.operators[0].backward);
  EXPECT_EQ(report.operators[0].runs, 2);
  EXPECT_EQ(report.operators[0].calls, 8);
  EXPECT_NEAR(report.operators[0].predicted.value, 6e-3, 1e-15);
  EXPECT_NEAR(report.operators[0].measured.value, 10e-3, 1e-15);
  EXPECT_TRUE(report.operators[1].backward);
  EXPECT_EQ(report.operators[2].name, "send");
}

class ExecutedRunsFiles : public InFolder {};

TEST_F(ExecutedRunsFiles, ByTheCurvesGivenOrTheirOwn) {
  Job job = TinyJob(TinyModel(), {.tensor = 2});
  job.cluster.gpu.calibration_file = "own.json";
  Write("run.json", WriteExecutedRun(Executed(job)));
  Write("own.json", WriteCurves(MadeUpCurves()));
  const std::vector<std::string> files{"run.json"};
  const ExecutedRunsReport by_own = CompareWithExecuted(files, std::nullopt);
  EXPECT_EQ(by_own.warnings, std::vector<std::string>());

  // Twice the rates, from another file and then from its own: a smaller prediction.
  GpuCurves faster = MadeUpCurves();
  faster.provenance = "measured again";
  for (FlopsPerSecond* rate : {&faster.rates.fp32, &faster.rates.fp64}) *rate = 2.0 * *rate;
  Write("faster.json", WriteCurves(faster));
  const ExecutedRunsReport by_faster = CompareWithExecuted(files, "faster.json");
  EXPECT_EQ(by_faster.warnings, std::vector<std::string>());
  EXPECT_LT(by_faster.results[0].comparison.predicted, by_own.results[0].comparison.predicted);
  EXPECT_EQ(by_faster.results[0].comparison.measured, by_own.results[0].comparison.measured);
  Write("own.json", WriteCurves(faster));
  EXPECT_EQ(
      CompareWithExecuted(files, std::nullopt).warnings,
      std::vector<std::string>({"run.json: own.json holds other curves now than when the step "
                                "was executed"}));
}

std::string MistakesIn(const std::vector<std::string>& files) {
  try {
    CompareWithExecuted(files, std::nullopt);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST_F(ExecutedRunsFiles, CurvesOfAnotherGpuAndStepsGivenTwice) {
  Job job = TinyJob(TinyModel(), {.tensor = 2});
  job.cluster.gpu.calibration_file = "own.json";
  const std::string run = WriteExecutedRun(Executed(job));
  Write("run.json", run);
  Write("copy.json", run);
  Write("own.json", WriteCurves(MadeUpCurves()));
  GpuCurves other = MadeUpCurves();
  other.gpu = "H100-SXM";
  Write("other.json", WriteCurves(other));
  const std::vector<std::string> once{"run.json"};
  EXPECT_EQ(CompareWithExecuted(once, "other.json").warnings,
            std::vector<std::string>(
                {"run.json: was executed on local-cpu, and other.json is of H100-SXM"}));
  EXPECT_EQ(MistakesIn({"run.json", "copy.json", "run.json", "none.json"}),
            "none.json: no such file\n"
            "copy.json: holds the same step as run.json; expected each step once\n"
            "run.json: holds the same step as run.json; expected each step once");
}

TEST_F(ExecutedRunsFiles, MistakesOfAllFiles) {
  Write("one.json", WriteExecutedRun(Executed(TinyJob(TinyModel(), {}))));
  Write("two.json", "{}");
  EXPECT_EQ(MistakesIn({"one.json", "two.json", "three.json"}),
            "two.json: at /executed: expected an object, got nothing (this field is required)\n"
            "two.json: at /job: expected an object, got nothing (this field is required)\n"
            "three.json: no such file\n"
            "one.json: expected --calibration, or a calibration file in its job, got neither");
}

}  // namespace
}  // namespace millwright
