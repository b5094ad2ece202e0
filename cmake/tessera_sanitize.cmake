# Sanitizer builds (TESSERA_SANITIZE): their flags, which tests run under them,
# and with which options.
#   ./test runs the small set of the thread sanitizer as one test (tests/sanitize):
#     target sanitized_small_tests, label sanitize_small.
#   ./test --sanitize address|thread runs the larger set: target sanitized_tests,
#     label sanitize, in a build folder of its own.
#
# libtorch, OpenBLAS, OpenMP and MPI are Debian's own builds, not instrumented:
# tests that spend their time inside them would show little and take long, so the
# lists hold the half without libtorch and those folders above it whose own code
# shares memory between threads or reads bytes from outside.
set(tessera_sanitized_tests
  checkpoint_test comm_test config_test cost_test diagnostics_test doctor_test fuzz_calibration
  fuzz_checkpoint fuzz_config fuzz_described fuzz_graph fuzz_message fuzz_object fuzz_plan
  fuzz_safetensors fuzz_strategies fuzz_timeline
  graph_test ipc_test launch_test nn_test partition_test plan_test planner_test report_test
  runtime_test schedule_test simulator_test tensor_test timeline_test topology_test
  transport_test)

# Server, transport, collectives, checkpoints. Left to the larger set: most of the torch-free half, programs
# that fork (launch_test, doctor_test), and fuzz_*, which fuzz.libfuzzer runs.
set(tessera_sanitized_small_tests checkpoint_test comm_test runtime_test transport_test)
if(NOT TESSERA_SANITIZE MATCHES "thread")
  # Prices, plans and simulations run on one thread and compile in seconds.
  list(APPEND tessera_sanitized_small_tests cost_test planner_test simulator_test)
endif()

if(TESSERA_LIBFUZZER)
  target_compile_options(tessera_flags INTERFACE "$<BUILD_INTERFACE:-fsanitize=fuzzer-no-link>")
endif()
if(TESSERA_SANITIZE)
  # -O1 compiles in half the time of -O2 and keeps back traces whole.
  target_compile_options(tessera_flags INTERFACE
    "$<BUILD_INTERFACE:-fsanitize=${TESSERA_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer;-O1>")
  target_link_options(tessera_flags INTERFACE "$<BUILD_INTERFACE:-fsanitize=${TESSERA_SANITIZE}>")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ 12 sees what is not there (in std::regex, std::optional) once the address sanitizer is on.
    target_compile_options(tessera_flags INTERFACE "$<BUILD_INTERFACE:-Wno-maybe-uninitialized>")
  endif()
endif()

set(tessera_sanitizer_environment
  "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1"
  "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/cmake/leaks.supp:print_suppressions=0"
  "UBSAN_OPTIONS=print_stacktrace=1"
  "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/cmake/threads.supp:second_deadlock_stack=1:ignore_noninstrumented_modules=1")

# Called by tessera_add_test.
function(tessera_sanitize_test name)
  if(TESSERA_SANITIZE AND name IN_LIST tessera_sanitized_tests)
    set_property(TEST ${name} APPEND PROPERTY LABELS sanitize)
    if(name IN_LIST tessera_sanitized_small_tests)
      set_property(TEST ${name} APPEND PROPERTY LABELS sanitize_small)
    endif()
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT ${tessera_sanitizer_environment})
    # They run 5 to 20 times slower.
    set_tests_properties(${name} PROPERTIES TIMEOUT 900)
    set_property(GLOBAL APPEND PROPERTY tessera_sanitized ${name})
  endif()
endfunction()

# Called when all tests are known.
function(tessera_add_sanitized_tests)
  if(TESSERA_SANITIZE AND NOT TESSERA_LIBFUZZER)
    get_property(targets GLOBAL PROPERTY tessera_sanitized)
    foreach(name IN LISTS tessera_sanitized_tests tessera_sanitized_small_tests)
      if(NOT name IN_LIST targets)
        message(FATAL_ERROR "cmake/tessera_sanitize.cmake names '${name}', which is no sanitized test")
      endif()
    endforeach()
    add_custom_target(sanitized_tests DEPENDS ${targets} sanitize_planted)
    add_custom_target(sanitized_small_tests
      DEPENDS ${tessera_sanitized_small_tests} sanitize_planted)
  endif()
endfunction()
