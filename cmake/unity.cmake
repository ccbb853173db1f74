# Eight sources of a target go through the compiler as one, which parses their headers once: a build
# takes half of the time. Sources named here go alone, since another one of their target has the
# same names in its anonymous namespace. A new one of that kind does not compile, and comes here
# (those of tests/ to tests/CMakeLists.txt), or gets a name of its own.
if(NOT TESSERA_SANITIZE)  # not tried with those builds, some of which are clang's
  set(CMAKE_UNITY_BUILD ON)
endif()
set(CMAKE_UNITY_BUILD_BATCH_SIZE 8)

set(alone
    base/cgroup_test cli/bench_run cli/command_table cli/expert_costs cli/layer_times
    device/cpu/attention device/cpu/gated_delta_test device/cpu/vector_ops_test
    device/gpu/plugin/gpu_expert_set gguf/file gguf/writer model/synth/templates
    pipeline/pipeline_test plan/program_planner_test plan/shard_planner_test
    plan/shared_memory_test plan/stream_plan_test quant/k_symmetric quant/legacy sampling/choose
    server/request_parser worker/hostile_attach_test worker/wire_test)
list(TRANSFORM alone PREPEND ${CMAKE_SOURCE_DIR}/src/)
list(TRANSFORM alone APPEND .cc)
# Every family's reader has the same steps, every set of filters a table.
file(GLOB_RECURSE alike ${CMAKE_SOURCE_DIR}/src/model/readers/*.cc
     ${CMAKE_SOURCE_DIR}/src/text/jinja/*.cc)
set_source_files_properties(${alone} ${alike} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
