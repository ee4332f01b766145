/* gradcomp probe: measures what messages, bytes, additions and compressors cost on the nodes
 * of this job, and writes them to a machine file for gradcomp plan. */
#include "tools/probe.h"

#include "tools/bench.h"
#include "tools/commands.h"
#include "base/number.h"

#include <stdbool.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char usage_text[] =
	"usage: gradcomp probe [--output FILE] [--name NAME] [--compressors all|SPEC,SPEC...]\n"
	"                      [--collectives all|SPEC,SPEC...] [--seconds S] [--numbers N] [--sleeping]\n"
	"Started by srun on the nodes to be measured, one task a rank:\n"
	"srun -N4 --mpi=pmix --gradcomp=none gradcomp probe\n"
	"--output     the machine file; machine.ini\n"
	"--name       what the machine is called in it; the first host and what is in the job\n"
	"--seconds    about how long to measure; 15\n"
	"--numbers    of the largest bucket that compressors are measured with; 1048576\n"
	"--sleeping   programs compute elsewhere, on a GPU: compressing has the cores for itself\n";

/* Nodes by their hosts; which this rank is on. */
static gradcomp_status find_nodes(probe *p, gradcomp_error *err)
{
	int mine = 0, first = 0, *at = calloc((size_t)p->nranks, sizeof *at);
	gradcomp_status st;
	if (!at) {
		probe_nomem(err, "a list of nodes");
		return GRADCOMP_ERR_NOMEM;
	}
	for (int r = 0; r < p->nranks; r++) {
		const char *host = gradcomp_job_host(p->job, r);
		int same = 0;
		while (same < r && strcmp(gradcomp_job_host(p->job, same), host) != 0)
			same++;
		at[r] = same == r ? p->nodes++ : at[same];
	}
	mine = at[p->rank];
	while (at[first] != mine)
		first++;
	for (int k = 0; k < p->nodes; k++) {
		int here = 0;
		for (int r = 0; r < p->nranks; r++)
			here += at[r] == k;
		p->per_node = here > p->per_node ? here : p->per_node;
	}
	free(at);
	if (p->per_node * p->nodes != p->nranks)
		probe_say(p, "nodes do not have equally many ranks; the file says %d of each", p->per_node);
	st = gradcomp_group_split(p->world, mine, p->rank, &p->node, err);
	if (!st)
		st = gradcomp_group_split(p->world, first == p->rank ? 0 : -1, p->rank, &p->leaders, err);
	return st ? st : gradcomp_group_split(p->world, p->rank, 0, &p->alone, err);
}

/* Checks before anything is measured that the file could be written. */
static int writable(const char *file, gradcomp_error *err)
{
	char folder[4096];
	struct stat s;
	const char *slash = strrchr(file, '/');
	size_t n = slash ? (size_t)(slash - file) + (slash == file) : 1;
	snprintf(folder, sizeof folder, "%.*s", (int)n, slash ? file : ".");
	if (n >= sizeof folder || !*file || access(folder, W_OK | X_OK) ||
	    (!lstat(file, &s) && (!S_ISREG(s.st_mode) || access(file, W_OK))))
		return bench_failed(err, GRADCOMP_ERR_IO, "--output %s: cannot be written", file);
	return 0;
}

static gradcomp_status measure(probe *p, gradcomp_error *err)
{
	double start = clock_now();
	gradcomp_status st;
	probe_say(p, "%d rank%s on %d node%s, about %.0f seconds", p->nranks, p->nranks == 1 ? "" : "s", p->nodes,
	          p->nodes == 1 ? "" : "s", p->seconds);
	probe_say(p, "messages");
	st = probe_levels(p, p->seconds * 0.2, err);
	if (!st) {
		probe_say(p, "adding and copying");
		st = probe_speeds(p, p->seconds * 0.1, err);
	}
	if (!st) {
		probe_say(p, "%d compressors", p->ncompressors);
		st = probe_compressors(p, p->seconds * 0.45, err);
	}
	if (!st && p->nranks > 1) {
		probe_say(p, "%d collectives", p->ncollectives);
		st = probe_collectives(p, p->seconds * 0.25, err);
	}
	if (!st)
		probe_say(p, "measured in %.1f seconds", clock_now() - start);
	if (!st && p->nlines)
		p->m->spread = fmin(0.5, fmax(0.01, p->off / p->nlines));
	if (!st && p->noise > 0.25)
		probe_say(
			p,
			"what was measured is off its lines by %.0f %% (%s): the nodes are not quiet, or --seconds is "
			"short",
			100 * p->noise, p->noisy);
	return st;
}

static gradcomp_status probe_run(probe *p, const char *output, const char *name, const char *compressors,
                                 const char *collectives, gradcomp_error *err)
{
	gradcomp_error why = {0};
	double bad;
	gradcomp_status st = find_nodes(p, err);
	if (st)
		return st;
	p->named_compressors = compressors && strcmp(compressors, "all") != 0;
	p->named_collectives = collectives && strcmp(collectives, "all") != 0;
	/* An error of one rank ends all of them, by its own words. */
	p->ncompressors = bench_specs_find(GRADCOMP_KIND_COMPRESSOR, compressors, "--compressors", p->compressors,
	                                   PROBE_SPECS, &why);
	if (p->ncompressors >= 0)
		p->ncollectives = bench_specs_find(GRADCOMP_KIND_COLLECTIVE, collectives, "--collectives",
		                                   p->collectives, PROBE_SPECS, &why);
	bad = p->ncompressors < 0 || p->ncollectives < 0 || (p->rank == 0 && writable(output, &why));
	st = probe_slowest(p, &bad, err);
	if (!st && bad) {
		*err = why;
		return GRADCOMP_ERR_INVALID;
	}
	p->m->nodes = (uint32_t)p->nodes;
	p->m->ranks_per_node = (uint32_t)p->per_node;
	if (name)
		snprintf(p->m->name, sizeof p->m->name, "%s", name);
	else
		snprintf(p->m->name, sizeof p->m->name, "%.40s-%dx%d", gradcomp_job_host(p->job, 0), p->nodes,
		         p->per_node);
	if (!st)
		st = measure(p, err);
	if (st || p->rank != 0)
		return st;
	probe_show(p->m);
	return machine_file_write(output, p->m, err);
}

static void release(probe *p)
{
	gradcomp_group_free(p->alone);
	gradcomp_group_free(p->leaders);
	gradcomp_group_free(p->node);
	machine_file_free(p->m);
}

/* Returns true when the step has several tasks without PMIx: each would be a job of one rank, and all would write
 * the same file. */
static bool lacks_pmix(int nranks)
{
	const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
	return nranks == 1 && tasks && strtol(tasks, NULL, 10) > 1 && getenv("SLURM_PROCID");
}

/* Returns true when a machine file can have this name. */
static bool is_name(const char *name)
{
	size_t n = strlen(name);
	if (!n || n >= sizeof((machine_file *)0)->name || *name == ' ' || name[n - 1] == ' ')
		return false;
	for (const char *c = name; *c; c++)
		if (*c < 0x20 || *c > 0x7e || *c == ';' || *c == '#')
			return false;
	return true;
}

int cmd_probe(int argc, char **argv)
{
	static probe p;
	const char *output = "machine.ini", *name = NULL, *compressors = NULL, *collectives = NULL;
	const char *seconds = "15", *numbers = "1048576";
	const command_option options[] = {{"--output", &output, NULL},           {"--name", &name, NULL},
	                                  {"--compressors", &compressors, NULL}, {"--collectives", &collectives, NULL},
	                                  {"--seconds", &seconds, NULL},         {"--numbers", &numbers, NULL},
	                                  {"--sleeping", NULL, &p.sleeping},     {0}};
	/* The measurements have no use for the job's report and the like. */
	static const char *const settings[] = {
		"gradcomp.report=", "gradcomp.record=", "gradcomp.trace=", "gradcomp.log=error", NULL};
	const gradcomp_job_options job = {.struct_size = sizeof job, .settings = settings};
	gradcomp_error err = {0}, left = {0};
	gradcomp_status st;
	int64_t n;
	int status = command_take_options(argc, argv, usage_text, options, NULL, 0);
	if (status >= 0)
		return status;
	if (number_float(seconds, &p.seconds) != NUMBER_OK || !(p.seconds >= 0.5 && p.seconds <= 3600))
		return command_usage_error(usage_text, "--seconds '%s' is not from 0.5 to 3600", seconds);
	if (number_int(numbers, &n) != NUMBER_OK || n < 4096 || n > 1 << 28)
		return command_usage_error(usage_text, "--numbers '%s' is not from 4096 to 268435456", numbers);
	if (name && !is_name(name))
		return command_usage_error(usage_text,
		                           "--name '%s' is not 1 to 63 printable characters without ';' and '#'", name);
	p.numbers = (uint64_t)n;
	p.m = calloc(1, sizeof *p.m);
	if (!p.m) {
		probe_nomem(&err, "a machine");
		return command_failed(&err);
	}
	st = gradcomp_job_create(&job, &p.job, &err);
	if (!st) {
		p.world = gradcomp_job_world(p.job);
		p.rank = gradcomp_job_rank(p.job);
		p.nranks = gradcomp_job_nranks(p.job);
		if (lacks_pmix(p.nranks))
			st = bench_failed(
				&err, GRADCOMP_ERR_STATE,
				"this step has several tasks that do not know each other; start it with srun --mpi=pmix");
		else
			st = probe_run(&p, output, name, compressors, collectives, &err);
	}
	release(&p);
	if (p.job && gradcomp_job_free(p.job, &left) && !st) {
		st = left.status;
		err = left;
	}
	/* Without a text the rank ends because another one failed, which reports it. */
	return !st ? 0 : *err.text ? command_failed(&err) : 1;
}
