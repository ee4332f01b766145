/* Tells on stderr how far gradcomp stage is, while it works. */
#ifndef TOOLS_STAGE_SHOW_H
#define TOOLS_STAGE_SHOW_H

#include "gradcomp/stage.h"
#include "base/json.h"

typedef enum stage_live {
	STAGE_LINES = 0,    /* a line every few seconds */
	STAGE_TERMINAL = 1, /* one line that is rewritten */
	STAGE_RETURNS = 2   /* lines that end in a carriage return: who reads them rewrites */
} stage_live;

typedef struct stage_show {
	char prefix[128]; /* "gradcomp: " or "gradcomp: n2: " */
	const char *source;
	stage_live live;
	int columns;     /* a live line has at most so many */
	int quiet, open; /* open: an unfinished line stands on the terminal */
	gradcomp_stage_phase phase;
	double next; /* seconds of the phase at which the next line is due */
} stage_show;

/* A progress function of gradcomp_stage(), which a signal stops; `ctx` is the stage_show. */
int stage_show_progress(void *ctx, const gradcomp_stage_progress *p);
void stage_show_clear(stage_show *s);
void stage_show_result(const stage_show *s, const gradcomp_stage_result *r, int mode, int dry);
void stage_show_json(jsonw *j, const gradcomp_stage_result *r, int mode, int dry);

#endif
