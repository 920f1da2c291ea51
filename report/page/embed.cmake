# SPDX-License-Identifier: Apache-2.0
#
# cmake -DOUT=FILE.cc -DNAMES=A;B -DFILES=a.js;b.css -P embed.cmake: a source file in which the
# function A returns the text of a.js, and so on.  "-" stands for no file, and an empty text.
cmake_policy(VERSION 3.25)
set(source "// Written by report/page/embed.cmake.\n#include \"report/page_parts.h\"\n\n")
string(APPEND source "namespace millwright {\n\n")
foreach(name file IN ZIP_LISTS NAMES FILES)
  set(text "")
  if(NOT file STREQUAL "-")
    file(READ "${file}" text)
  endif()
  string(FIND "${text}" ")embedded\"" end_inside)
  if(NOT end_inside EQUAL -1)
    message(FATAL_ERROR "${file} holds what ends a raw string here")
  endif()
  string(APPEND source "std::string_view ${name}() { return R\"embedded(${text})embedded\"; }\n\n")
endforeach()
string(APPEND source "}  // namespace millwright\n")
file(WRITE "${OUT}" "${source}")
