# Language, warnings and include paths of every room. Headers are included from the root: #include "model/program.h".
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# The tree is built for any machine of the architecture: measured and planned figures must not depend on where the
# binary was compiled. -O3 because the CPU back end's loops are long and simple.
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O3 -g" CACHE STRING "Flags of the default build" FORCE)

include_directories(${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
add_compile_definitions($<$<COMPILE_LANGUAGE:C>:_GNU_SOURCE>)

set(RK_C_OPTIONS -Wall -Wextra -Wpedantic -Wshadow -Wconversion
    # The result of a*b+c must not depend on whether a compiler fuses it: layouts are compared bit by bit.
    -ffp-contract=off
    -fno-omit-frame-pointer)
if(RK_WERROR)
    list(APPEND RK_C_OPTIONS -Werror)
endif()
foreach(option IN LISTS RK_C_OPTIONS)
    add_compile_options($<$<COMPILE_LANGUAGE:C>:${option}>)
endforeach()

if(RK_SANITIZE)
    add_compile_options($<$<COMPILE_LANGUAGE:C>:-fsanitize=${RK_SANITIZE}>)
    if(RK_SANITIZE MATCHES "undefined")
        add_compile_options($<$<COMPILE_LANGUAGE:C>:-fno-sanitize-recover=undefined>)
    endif()
    add_link_options(-fsanitize=${RK_SANITIZE})
    add_compile_definitions(RK_SANITIZED=1)
endif()
