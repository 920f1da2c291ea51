// SPDX-License-Identifier: Apache-2.0
//
// The texts that pages are put together from, as they stood when the program was built:
// report/page/embed.cmake makes functions of the files in report/page/ and of the installed D3.
#pragma once

#include <string_view>

namespace millwright {

std::string_view PageLibrary();  // D3; empty where it was not there to build with
std::string_view PageLibraryLicence();
std::string_view PageStyle();
std::string_view PageScript();        // what every page needs
std::string_view TimelineScript();    // passes and tasks over time
std::string_view ChartsScript();      // memory, breakdown, links, distribution
std::string_view ValidationScript();  // the page of validate
std::string_view StepScript();        // puts the pages of simulate and compare together
std::string_view PlanScript();        // the page of plan

}  // namespace millwright
