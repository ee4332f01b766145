/* gradcomp cache: what is in this node's cache, and how it is kept in order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/cmd_cache.h"
#include "tools/commands.h"
#include "gradcomp/stage.h"
#include "base/number.h"
#include "io/cache/cache.h"

static const char usage[] =
	"usage: gradcomp cache {list|du|verify|gc|pin|unpin|evict|clear|lease} [OPTION]... [NAME]...\n"
	"Copies of staged datasets in your cache on this node. NAME is a key, the beginning\n"
	"of one (4 digits or more), or a source, which means its last used copy.\n\n"
	"  list     what is there, what would be evicted first coming first\n"
	"  du       how much it takes, and how much it may\n"
	"  verify   read every byte and compare it with the checksums (all copies, or NAME)\n"
	"  gc       remove leases of what is gone, unfinished copies that nobody has gone on\n"
	"           with for a day, and when the cache is above its high mark, what was used\n"
	"           least recently\n"
	"  pin      keep NAME until unpin NAME\n"
	"  unpin    let NAME be evicted again\n"
	"  evict    remove NAME, unless it is leased or pinned\n"
	"  clear    remove all that is not leased or pinned\n"
	"  lease    with --job: keep NAME until gc --job, or until the node boots\n\n"
	"  --all-users      of all users of the node, as root\n"
	"  --cache-dir DIR  the cache (setting stage.cache_dir)\n"
	"  --dry-run        say what would be done; change nothing\n"
	"  --force          evict, clear: what is pinned too; leased copies always stay\n"
	"  --holder TEXT    lease: what list shows for it\n"
	"  --job ID         gc: remove the leases of that job and nothing else\n"
	"  --live-jobs LIST gc: remove the leases of all other jobs too; LIST: squeue -h -o %A\n"
	"  --json           print an object (with --all-users a list of them)\n"
	"  --shared         the area of the node that all users share\n\n"
	"Exit status: 0 done, 1 not or not all of it (verify: something is damaged), 2 wrong usage.\n";

enum { NO_NAME, ANY_NAMES, NAMES };

static const struct verb {
	const char *name;
	int (*run)(const cache_request *r);
	int names;
	int takes_job, takes_force, alone; /* alone: for one area */
} verbs[] = {
	{"list", cache_verb_list, ANY_NAMES, 0, 0, 0},     {"du", cache_verb_du, NO_NAME, 0, 0, 0},
	{"verify", cache_verb_verify, ANY_NAMES, 0, 0, 0}, {"gc", cache_verb_gc, NO_NAME, 1, 0, 0},
	{"pin", cache_verb_pin, NAMES, 0, 0, 1},           {"unpin", cache_verb_unpin, NAMES, 0, 0, 1},
	{"evict", cache_verb_evict, NAMES, 0, 1, 1},       {"clear", cache_verb_clear, NO_NAME, 0, 1, 0},
	{"lease", cache_verb_lease, NAMES, 1, 0, 1},
};

static const struct verb *find_verb(const char *name)
{
	for (size_t i = 0; name && i < sizeof verbs / sizeof verbs[0]; i++)
		if (!strcmp(verbs[i].name, name))
			return &verbs[i];
	return NULL;
}

/* When this process began, ns since 1970. A shell that has asked Slurm for the list, and has then become this command,
 * began before it asked. */
static int64_t began(void)
{
	int64_t tick = 1000000000 / sysconf(_SC_CLK_TCK), start = (int64_t)cache_process_start(getpid());
	struct timespec now, up;
	clock_gettime(CLOCK_REALTIME, &now);
	clock_gettime(CLOCK_BOOTTIME, &up);
	return (now.tv_sec - up.tv_sec) * 1000000000LL + now.tv_nsec - up.tv_nsec + (start + 1) * tick;
}

/* Numbers between blanks, newlines or commas; none is no job. malloc'ed. 0, or the exit status. */
static int take_jobs(char *list, cache_request *r)
{
	static const char between[] = " \t\n,";
	char name[120], *rest;
	int64_t *jobs = malloc((strlen(list) / 2 + 1) * sizeof *jobs);
	size_t n = 0;
	if (!jobs) {
		fputs("gradcomp: no memory for --live-jobs\n", stderr);
		return 1;
	}
	r->options.live_jobs = jobs;
	for (char *word = strtok_r(list, between, &rest); word; word = strtok_r(NULL, between, &rest))
		if (number_int(word, &jobs[n++]) != NUMBER_OK || jobs[n - 1] < 1)
			return command_usage_error(usage, "--live-jobs has '%s'; it is a list of the numbers of jobs",
			                           gradcomp_printable(word, name, sizeof name));
	r->options.nlive_jobs = n;
	r->options.live_ns = began();
	return 0;
}

/* Refuses what does not go together. -1 go on, else the exit status. */
static int check(const struct verb *v, const cache_request *r, const char *job, int force, int shared)
{
	if (job && !v->takes_job)
		return command_usage_error(usage, "cache %s takes no --job", v->name);
	if (!job && v->run == cache_verb_lease)
		return command_usage_error(usage, "cache lease needs --job");
	if (r->holder && v->run != cache_verb_lease)
		return command_usage_error(usage, "cache %s takes no --holder", v->name);
	if (force && !v->takes_force)
		return command_usage_error(usage, "cache %s takes no --force", v->name);
	if (r->names[0] && v->names == NO_NAME)
		return command_usage_error(usage, "cache %s: one argument too many: '%s'", v->name, r->names[0]);
	if (!r->names[0] && v->names == NAMES)
		return command_usage_error(usage, "cache %s needs the name of a copy", v->name);
	if (r->all_users && v->alone)
		return command_usage_error(usage, "cache %s works on one user's cache, without --all-users", v->name);
	if (r->all_users && shared)
		return command_usage_error(usage, "--all-users includes what --shared means; give one of them");
	return -1;
}

int cmd_cache(int argc, char **argv)
{
	cache_request r = {.options = {.struct_size = sizeof r.options}};
	int dry = 0, force = 0, shared = 0;
	const char *job = NULL, *live = NULL, *words[CACHE_NAMES_MAX] = {NULL};
	char name[120];
	const command_option options[] = {
		{"--all-users", NULL, &r.all_users}, {"--cache-dir", &r.options.cache_dir, NULL},
		{"--dry-run", NULL, &dry},           {"--force", NULL, &force},
		{"--holder", &r.holder, NULL},       {"--job", &job, NULL},
		{"--json", NULL, &r.json},           {"--live-jobs", &live, NULL},
		{"--shared", NULL, &shared},         {0},
	};
	int status = command_take_options(argc, argv, usage, options, words, CACHE_NAMES_MAX);
	if (status >= 0)
		return status;
	const struct verb *v = find_verb(words[0]);
	if (!v)
		return words[0] ? command_usage_error(
					  usage, "cache: there is no '%s'; gradcomp cache --help lists what there is",
					  gradcomp_printable(words[0], name, sizeof name))
		                : command_usage_error(usage, "cache needs a verb; gradcomp cache --help lists them");
	memcpy(r.names, words + 1, sizeof words - sizeof words[0]);
	if ((status = check(v, &r, job, force, shared)) >= 0)
		return status;
	if (job && (number_int(job, &r.job) != NUMBER_OK || r.job < 1))
		return command_usage_error(usage, "--job is '%s'; it is the number of a job",
		                           gradcomp_printable(job, name, sizeof name));
	if (live && v->run != cache_verb_gc)
		return command_usage_error(usage, "cache %s takes no --live-jobs", v->name);
	if (live && job)
		return command_usage_error(usage, "cache gc takes --job or --live-jobs, not both");
	if (live && (status = take_jobs((char *)live, &r)))
		goto done;
	r.options.flags = (dry ? GRADCOMP_CACHE_DRY_RUN : 0) | (force ? GRADCOMP_CACHE_FORCE : 0) |
	                  (shared ? GRADCOMP_CACHE_SHARED : 0);
	status = r.all_users                ? cache_each_user(&r, v->run)
	         : shared && geteuid() == 0 ? cache_as_owner(&r, v->run)
	                                    : v->run(&r);
done:
	free((void *)r.options.live_jobs);
	return status;
}
