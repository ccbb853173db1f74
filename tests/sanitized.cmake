# What the tests leave out in a build with a sanitizer (scripts/stage asan, scripts/stage tsan), and
# why. What is not named here runs there as it does elsewhere. The stage prints this list.
#
# A kernel is some thirty times slower there, and so is a model. A sanitizer watches the path that is
# taken, not the numbers: a path that several models, shares or topologies take alike is walked once.

# tessera_leave_out(TEST BECAUSE reason [TESTS patterns of GoogleTest...])    without TESTS: all of it
# A reason has no semicolon.
function(tessera_leave_out test)
  cmake_parse_arguments(OUT "" "BECAUSE" "TESTS" ${ARGN})
  list(JOIN OUT_TESTS ":" patterns)
  if(patterns)
    set_property(TEST ${test} APPEND_STRING PROPERTY LEFT_OUT ":${patterns}")
    get_test_property(${test} LEFT_OUT all)
    string(REGEX REPLACE "^:" "-" all "${all}")
    set_tests_properties(${test} PROPERTIES ENVIRONMENT "GTEST_FILTER=${all}")
  endif()
  file(APPEND ${CMAKE_BINARY_DIR}/left_out "${test} ${patterns}: ${OUT_BECAUSE}\n")
endfunction()
file(WRITE ${CMAKE_BINARY_DIR}/left_out "")

# --- Whole tests: where TESSERA_SANITIZE is set they are not built ---

set(program "the program is tested as it is built for use, and what it is made of here")
tessera_leave_out(cli BECAUSE "${program}")
tessera_leave_out(capability BECAUSE "${program}")
tessera_leave_out(stand_ins_test BECAUSE "${program}")
tessera_leave_out(stand_in_bytes_test BECAUSE "${program}")
tessera_leave_out(e2e BECAUSE "${program}")
tessera_leave_out(openai_client_real BECAUSE "${program}")
tessera_leave_out(allocation_test BECAUSE "it takes the place of allocators that a sanitizer replaces too")
tessera_leave_out(allocation_remotes_test BECAUSE "it takes the place of allocators that a sanitizer replaces too")
tessera_leave_out(steady_jobs_test BECAUSE "it counts in the place of allocators that a sanitizer replaces too")
tessera_leave_out(gpu_test BECAUSE "a GPU's driver is not built with a sanitizer")

if(TESSERA_TEST_ROOMS)  # CMakePresets.json
  list(JOIN TESSERA_TEST_ROOMS ", " rooms)
  tessera_leave_out("unit tests of rooms but ${rooms}" BECAUSE "none starts threads that base does not")
endif()

# --- Parts of tests ---

tessera_leave_out("text Tokenizer.TakesHugeWordsInLinearTime, 19 of 20 bytes"
                  BECAUSE "the address sanitizer takes minutes for them")

tessera_leave_out("base AlignedBuffer.TakesWhatItHolds"
                  BECAUSE "resident memory has the sanitizer's own in it")
tessera_leave_out("experts Prefault.LocksWhatIsCounted" BECAUSE "a sanitizer's mlock locks nothing")

# Of the models, qwen35moe has both kinds of mixers and experts; what another one has besides is
# walked in golden_test, which runs all of them.
set(others qwen35 laguna gemma4 gemma4moe qwen3)
set(once "one model walks the path")
macro(tessera_leave_out_models test)
  foreach(pattern ${ARGN})
    list(TRANSFORM others PREPEND "${pattern}/" OUTPUT_VARIABLE patterns)
    tessera_leave_out(${test} BECAUSE "${once}" TESTS ${patterns})
  endforeach()
endmacro()

tessera_leave_out_models(golden_test *LogProbabilities*)
tessera_leave_out(golden_test BECAUSE "the kernels do not know the cut, and split_test has threads"
                  TESTS *AnyCutOfThePrompt* *AnyNeighbours*_f32 *AnyNeighbours*_q8_0)
tessera_leave_out_models(split_test *AnyNumberOfShards* *TeamsOfSeveral* *EveryPlace*
                         *SeveralSequences*)
tessera_leave_out(split_test BECAUSE "an option is data for the same path" TESTS SplitOptions.*)
tessera_leave_out_models(experts_system_test *)
tessera_leave_out(experts_system_test BECAUSE "${once}" TESTS */*_q8 */bundled)
tessera_leave_out(experts_system_test BECAUSE "numbers of shares, over the path of the others"
                  TESTS *Experts.AnyShare*)
tessera_leave_out(experts_system_test BECAUSE "quantised_test has the weights, the others the experts"
                  TESTS ExpertsQuantised.*)
tessera_leave_out_models(budget_test *LogitsAreThose* *EachShardHasItsOwn*)
tessera_leave_out(budget_test BECAUSE "quantised_test has the weights, *Greedy* the file"
                  TESTS BudgetQuantised.*)
tessera_leave_out(quantised_test BECAUSE "device_test has each kernel" TESTS *RowsDoNotDepend*)
tessera_leave_out_models(quantised_test *ComputesLike*)
tessera_leave_out(odd_models_test BECAUSE "other numbers, the same path"
                  TESTS *MoreExperts* *EveryLayerHasAWindow)

# Worker processes: who computes is slow, and who waits for a deadline waits ten times as long
# (TESSERA_TIME_SCALE).
tessera_leave_out(worker_process BECAUSE "numbers of topologies, over the path of the fault tests"
                  TESTS *WorkerLayers.AnyTopology* *WorkerLayers.SeveralSequences*
                        WorkerLayersExperts.* WorkerBudget.* WorkerOptions.*)
tessera_leave_out_models(worker_process *WorkerLayers.TokenByToken* *FilelessLayers.*)
tessera_leave_out(worker_process BECAUSE "numbers, over the path of the fault tests"
                  TESTS *Greedy.* *WorkerExperts.* *WorkerPayloads.*)
tessera_leave_out(worker_process BECAUSE "each fault comes in prefill over a socket and in decoding by rings"
                  TESTS *Faults.*_prefill_shared *Faults.*_prefill_tcp
                        *Faults.*_decode_stream *Faults.*_decode_tcp)

# On two cores that others use too; none takes half of it.
foreach(test golden_test split_test experts_system_test budget_test quantised_test odd_models_test
             worker_process)
  set_tests_properties(${test} PROPERTIES TIMEOUT 900)
endforeach()
