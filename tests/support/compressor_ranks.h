/* A compressor of this build, loaded by its SPEC, on P ranks. */
#ifndef TESTS_SUPPORT_COMPRESSOR_RANKS_H
#define TESTS_SUPPORT_COMPRESSOR_RANKS_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/ranks.h"
#include "conformance/fixture.h"
#include "config/spec.h"
#include "tests/support/operator_input.h"

typedef struct job {
	void *so;
	spec parsed;
	ranks s;
	float *g[RANKS_MAX];
} job;

/* dims must outlive the job. */
__attribute__((unused)) static int job_open(job *j, const char *text, int P, uint32_t n, uint64_t (*dims)[2])
{
	const char *build = getenv("GRADCOMP_BUILD");
	char path[4096], name[SPEC_NAME_MAX] = "";
	gradcomp_error err = {0};
	memset(j, 0, sizeof *j);
	spec_name(text, name, &err);
	snprintf(path, sizeof path, "%s/lib/gradcomp/compressors/%s.so", build ? build : ".", name);
	j->so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	const struct gradcomp_compressor_v1 *plugin = j->so ? dlsym(j->so, "gradcomp_compressor_v1") : NULL;
	if (!plugin || spec_parse(&plugin->info, text, &j->parsed, &err) ||
	    ranks_open(&j->s, plugin, operators_cpu(), j->parsed.values, P, n, dims, 7)) {
		ok(0, "%s opens: %s", text, err.text);
		return 0;
	}
	fixture_gradients_new(&j->s, j->g);
	return 1;
}

__attribute__((unused)) static void job_close(job *j)
{
	fixture_gradients_free(&j->s, j->g);
	ranks_close(&j->s);
	spec_clear(&j->parsed);
	dlclose(j->so);
}

__attribute__((unused)) static int job_step(job *j)
{
	gradcomp_status st = ranks_step(&j->s, j->g, 0);
	if (st)
		ok(0, "a step fails (%d): %s", st, j->s.err.text);
	return !st;
}

#endif
