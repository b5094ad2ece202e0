# cmake -DMODEL=model.h -DSCRIPT=ported.cpp -DFOLDER=folder -P port_model.cmake
# Writes to the folder the model's header with the macro replaced, which is all that porting does
# to it, and beside it the ported script, so that it finds this header and not the plain one.
cmake_minimum_required(VERSION 3.20)
file(READ ${MODEL} text)
string(REPLACE "TORCH_MODULE(" "TESSERA_MODULE(" ported "${text}")
string(REPLACE "#include <torch/torch.h>" "#include <torch/torch.h>\n#include \"tessera/tessera.h\""
  ported "${ported}")
if(ported MATCHES "TORCH_MODULE" OR ported STREQUAL text)
  message(FATAL_ERROR "${MODEL} holds no TORCH_MODULE")
endif()
file(CONFIGURE OUTPUT ${FOLDER}/model.h CONTENT "${ported}" @ONLY)
file(COPY ${SCRIPT} DESTINATION ${FOLDER})
