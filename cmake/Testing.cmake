# rk_test(<room> <name> [SOURCES more.c ...] [LIBRARIES ...]): a cmocka program from test_<name>.c, as <room>.<name>.
include(CTest)
if(RK_TESTS)
    find_path(RK_CMOCKA_INCLUDE cmocka.h)
    find_library(RK_CMOCKA_LIBRARY cmocka)
    mark_as_advanced(RK_CMOCKA_INCLUDE RK_CMOCKA_LIBRARY)
    if(NOT RK_CMOCKA_INCLUDE OR NOT RK_CMOCKA_LIBRARY)
        message(FATAL_ERROR "cmocka is missing. Install it with:\n    sudo apt-get install libcmocka-dev\n"
            "or build without the tests: -DRK_TESTS=OFF")
    endif()
    add_library(rk::cmocka UNKNOWN IMPORTED GLOBAL)
    set_target_properties(rk::cmocka PROPERTIES
        IMPORTED_LOCATION ${RK_CMOCKA_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${RK_CMOCKA_INCLUDE})
endif()

function(rk_test room name)
    cmake_parse_arguments(PARSE_ARGV 2 test "" "TIMEOUT" "SOURCES;LIBRARIES")
    if(NOT test_TIMEOUT)
        set(test_TIMEOUT 120)
    endif()
    if(RK_SANITIZE) # several times slower
        math(EXPR test_TIMEOUT "4 * ${test_TIMEOUT}")
    endif()
    add_executable(test_${room}_${name} test_${name}.c ${test_SOURCES})
    target_link_libraries(test_${room}_${name} PRIVATE reckon_${room} ${test_LIBRARIES} rk::cmocka)
    add_test(NAME ${room}.${name} COMMAND test_${room}_${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
    set_tests_properties(${room}.${name} PROPERTIES LABELS ${room} TIMEOUT ${test_TIMEOUT})
endfunction()
