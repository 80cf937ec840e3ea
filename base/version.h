/* What this binary is, for provenance. */
#ifndef RK_BASE_VERSION_H
#define RK_BASE_VERSION_H

/* "0.1.0". */
const char *rk_version(void);

/* The commit that was built: "05fdc2018c3f", with "+changes" when files differed from it, "unknown" without git. */
const char *rk_revision(void);

/* The C compiler and the kind of build: "GNU 12.2.0, RelWithDebInfo". */
const char *rk_build(void);

#endif
