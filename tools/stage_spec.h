/* The SPEC of what is to be staged, as gradcomp stage and --gradcomp-stage take it:
 *
 *     SOURCE[:key=value[,key=value...]][,SOURCE...]
 *
 * SOURCE is a path or nfs://SERVER/PATH. A comma, a backslash and a colon that is no
 * option's are written \, \\ \: in it. What follows a comma and looks like NAME=VALUE,
 * without a '/', belongs to the source before it; so do the words behind the last
 * colon of a source when they look so. Of exclude=GLOB, which may come several times, the GLOB
 * may have a '/' in it. */
#ifndef TOOLS_STAGE_SPEC_H
#define TOOLS_STAGE_SPEC_H

#include <stddef.h>

#include "gradcomp/stage.h"

#define STAGE_SOURCES 16
#define STAGE_SPEC_BYTES 4096 /* length of one SPEC, with the final 0 */

typedef struct stage_source {
	char *path;     /* owned */
	int mode;       /* gradcomp_stage_mode; -1: not said */
	int verify;     /* GRADCOMP_STAGE_CONTENT, GRADCOMP_STAGE_VERIFY, 0: by times; -1: not said */
	int links;      /* GRADCOMP_STAGE_FOLLOW, GRADCOMP_STAGE_REWRITE, 0: refuse; -1: not said */
	int unreadable; /* GRADCOMP_STAGE_SKIP_UNREADABLE, 0: refuse; -1: not said */
	char *exclude;  /* globs, one a line; owned; NULL: none */
} stage_source;

typedef struct stage_spec {
	stage_source source[STAGE_SOURCES];
	int n;
} stage_spec;

/* Adds the sources of `text` to the spec, which is zeroed at first. 0, or -1 with the
 * reason in `why`, fit for a terminal. */
int stage_spec_parse(const char *text, stage_spec *spec, char *why, size_t size);
/* The value of a key: its number, or -1. */
int stage_spec_mode(const char *word);
const char *stage_spec_mode_name(int mode);
const char *stage_spec_verify_name(int verify);
const char *stage_spec_links_name(int links);
void stage_spec_clear(stage_spec *spec);

#endif
