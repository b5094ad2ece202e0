# cmake -DCXX=compiler -DINCLUDES=folder|folder -DSOURCE=refused_type.cpp -P refused_type.cmake
# Each type that does not travel gives one error, which names it and tessera::Value and says what
# to write.
cmake_minimum_required(VERSION 3.20)
string(REPLACE "|" ";" includes "${INCLUDES}")
list(TRANSFORM includes PREPEND -I)
set(first "")
if(CXX MATCHES "clang")
  set(first -include ATen/core/ivalue.h) # as cmake/tessera_targets.cmake
endif()
execute_process(COMMAND ${CXX} -std=c++20 -fsyntax-only -w ${includes} ${first} ${SOURCE}
  RESULT_VARIABLE status ERROR_VARIABLE said OUTPUT_QUIET)
if(status EQUAL 0)
  message(FATAL_ERROR "types that do not travel were taken")
endif()

function(expect_count text expected)
  string(REGEX MATCHALL "${text}" found "${said}")
  list(LENGTH found count)
  if(NOT count EQUAL expected)
    message(SEND_ERROR "${count} times '${text}', expected ${expected}:\n${said}")
  endif()
endfunction()
expect_count(" error: " 4)
expect_count(" error: static[^\n]*tessera::Value does not know[^\n]*at most 12 public fields" 3)
expect_count(" error: static[^\n]*return what owns the data instead[^\n]*tessera::Value" 1)
foreach(type Constructed HoldsArray HoldsPointer)
  if(NOT said MATCHES "(T = |kNever<)${type}")
    message(SEND_ERROR "the refused type ${type} is not named:\n${said}")
  endif()
endforeach()
