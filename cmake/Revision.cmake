# Runs at every build: writes version.c when the revision changed, so that only this file is compiled again.
# -DSOURCE_DIR= -DOUTPUT= -DPROJECT_VERSION= -DRK_BUILD=
set(RK_REVISION "unknown")
find_program(GIT git)
if(GIT)
    execute_process(COMMAND ${GIT} -C ${SOURCE_DIR} rev-parse --short=12 HEAD
        OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed)
        set(RK_REVISION "${commit}")
        execute_process(COMMAND ${GIT} -C ${SOURCE_DIR} diff-index --quiet HEAD -- RESULT_VARIABLE changed ERROR_QUIET)
        if(changed)
            string(APPEND RK_REVISION "+changes")
        endif()
    endif()
endif()
configure_file(${SOURCE_DIR}/base/version.c.in ${OUTPUT} @ONLY)
