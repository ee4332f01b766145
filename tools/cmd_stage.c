/* gradcomp stage SPEC...: copies of datasets in the cache on this node. What they are
 * called is all that goes to stdout; progress and errors go to stderr. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tools/drop_privs.h"
#include "tools/sandbox.h"
#include "tools/commands.h"
#include "base/number.h"
#include "job/site_usage.h"
#include "tools/stage_nodes.h"
#include "tools/stage_show.h"
#include "tools/stage_spec.h"

static int stop(void)
{
	return command_caught_signal() != 0;
}

static const char usage[] = "usage: gradcomp stage [OPTION]... SPEC...\n"
			    "Copies each source into your cache on this node, unless a copy is there already,\n"
			    "and prints the paths of the copies, one a line.\n\n"
			    "A SPEC is SOURCE[:key=value[,key=value...]], or several, separated by commas. SOURCE is\n"
			    "a directory, a file, or nfs://SERVER/PATH; ',' ':' and '\\' in it may be written\n"
			    "behind a '\\'. Keys:\n"
			    "  mode=full|shard|link     all of it, this node's part, or nothing but a check\n"
			    "  verify=mtime|sha|copy    what tells that a copy is good: names, sizes and times;\n"
			    "                           the source's contents; the copy's checksums\n"
			    "  exclude=GLOB             leave out what has such a name, or with a '/' such a path;\n"
			    "                           any number of these\n"
			    "  links=refuse|follow|rewrite  symbolic links that leave the tree are refused, or copied\n"
			    "                           as what they lead to; absolute ones into it made relative\n"
			    "  unreadable=refuse|skip   leave out what you may not read\n\n"
			    "  --cache-dir DIR    the cache (setting stage.cache_dir)\n"
			    "  --check            say what the SPECs mean; look at nothing\n"
			    "  --content          verify=sha for all that say nothing else\n"
			    "  --dry-run          say what would be done; write nothing\n"
			    "  --env              print GRADCOMP_DATA=PATH and so on, as tasks of a step find it\n"
			    "  --hold PID         keep the copies as long as this process lives\n"
			    "  --holder TEXT      what the cache says of it\n"
			    "  --json             print objects instead of paths\n"
			    "  --label TEXT       put TEXT before every message, a node's name for one\n"
			    "  --live COLUMNS     end lines of progress with a carriage return\n"
			    "  --max-bytes SIZE   refuse a larger dataset: 500M, 2T (setting stage.max_bytes)\n"
			    "  --rendezvous       together with the step's other nodes, where the SPANK plugin says\n"
			    "  --mode MODE        for all that say nothing else\n"
			    "  --pmix             together with the step's other nodes (srun --mpi=pmix)\n"
			    "  --quiet            print errors and warnings only\n"
			    "  --shared           into the area that all users of the node share: what stage.shared\n"
			    "                     declares, by stage.shared_user, whom root becomes for it\n"
			    "  --verify           verify=copy for all that say nothing else\n"
			    "  --workers N        threads that copy, 1 to 64  [2]\n\n"
			    "Exit status: 0 there are copies, 1 there are not, 2 wrong usage, 3 another\n"
			    "node failed, 128+N signal N.\n";

struct arguments {
	const char *specs[STAGE_SOURCES], *label, *max_bytes, *workers, *mode, *hold, *live;
	int dry, verify, content, json, check, env, rendezvous, pmix, shared;
	stage_spec spec;
};

#define COLUMNS_MIN 40

static int take_columns(const struct arguments *a, stage_show *s)
{
	struct winsize size;
	int64_t n;
	s->columns = 80;
	if (a->live) {
		if (number_int(a->live, &n) != NUMBER_OK || n < 1 || n > 10000)
			return command_usage_value(usage, "--live", a->live, "give the columns of the terminal");
		s->live = STAGE_RETURNS;
		s->columns = (int)n;
	} else if (isatty(STDERR_FILENO)) {
		s->live = STAGE_TERMINAL;
		if (!ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_col)
			s->columns = size.ws_col;
	}
	s->columns = s->columns < COLUMNS_MIN ? COLUMNS_MIN : s->columns;
	return -1;
}

static int take_numbers(const struct arguments *a, gradcomp_stage_options *o)
{
	int64_t n;
	if (a->max_bytes) {
		if (number_size(a->max_bytes, &n) != NUMBER_OK || n < 1)
			return command_usage_value(usage, "--max-bytes", a->max_bytes,
			                           "give a size such as 500M or 2T");
		o->max_bytes = (uint64_t)n;
	}
	if (a->workers) {
		if (number_int(a->workers, &n) != NUMBER_OK || n < 1 || n > 64)
			return command_usage_value(usage, "--workers", a->workers, "it can be 1 to 64");
		o->workers = (uint32_t)n;
	}
	if (a->hold) {
		if (number_int(a->hold, &n) != NUMBER_OK || n < 1)
			return command_usage_value(usage, "--hold", a->hold, "give the number of a process");
		o->hold_pid = n;
	}
	return -1;
}

/* `none` stands alone and means nothing is to be done. */
static int take_specs(struct arguments *a)
{
	char why[300];
	if (a->specs[0] && !a->specs[1] && !strcmp(a->specs[0], "none"))
		return -1;
	for (int i = 0; i < STAGE_SOURCES && a->specs[i]; i++)
		if (stage_spec_parse(a->specs[i], &a->spec, why, sizeof why)) {
			fprintf(stderr, "gradcomp: %s\n", why);
			return 2;
		}
	for (int i = 0; i < a->spec.n; i++) {
		stage_source *s = &a->spec.source[i];
		if (s->mode < 0)
			s->mode = a->mode ? stage_spec_mode(a->mode) : GRADCOMP_STAGE_FULL;
		if (s->verify < 0)
			s->verify = (a->verify ? GRADCOMP_STAGE_VERIFY : 0) | (a->content ? GRADCOMP_STAGE_CONTENT : 0);
	}
	return -1;
}

/* -1 go on, else the exit status. */
static int parse(int argc, char **argv, struct arguments *a, gradcomp_stage_options *o, stage_show *s)
{
	const command_option options[] = {
		{"--cache-dir", &o->cache_dir, NULL},
		{"--check", NULL, &a->check},
		{"--content", NULL, &a->content},
		{"--dry-run", NULL, &a->dry},
		{"--env", NULL, &a->env},
		{"--hold", &a->hold, NULL},
		{"--holder", &o->holder, NULL},
		{"--json", NULL, &a->json},
		{"--label", &a->label, NULL},
		{"--live", &a->live, NULL},
		{"--max-bytes", &a->max_bytes, NULL},
		{"--rendezvous", NULL, &a->rendezvous},
		{"--mode", &a->mode, NULL},
		{"--pmix", NULL, &a->pmix},
		{"--quiet", NULL, &s->quiet},
		{"--shared", NULL, &a->shared},
		{"--verify", NULL, &a->verify},
		{"--workers", &a->workers, NULL},
		{0},
	};
	char name[120];
	int status = command_take_options(argc, argv, usage, options, a->specs, STAGE_SOURCES);
	if (status >= 0)
		return status;
	if (!a->specs[0])
		return command_usage_error(usage, "stage needs a directory, a file or nfs://SERVER/PATH");
	if (a->mode && stage_spec_mode(a->mode) < 0)
		return command_usage_value(usage, "--mode", a->mode, "it can be full, shard or link");
	if (a->rendezvous && a->pmix)
		return command_usage_error(usage, "--rendezvous and --pmix are two ways to one end; give one");
	status = take_numbers(a, o);
	if (status < 0)
		status = take_columns(a, s);
	if (status < 0)
		status = take_specs(a);
	if (a->label)
		snprintf(s->prefix, sizeof s->prefix, "gradcomp: %s: ", gradcomp_printable(a->label, name, 100));
	return status;
}

/* Takes the globs apart. */
static int explain(stage_spec *spec)
{
	char name[STAGE_SPEC_BYTES];
	for (int i = 0; i < spec->n; i++) {
		stage_source *s = &spec->source[i];

		printf("%s mode=%s verify=%s", gradcomp_printable(s->path, name, sizeof name),
		       stage_spec_mode_name(s->mode), stage_spec_verify_name(s->verify));
		if (s->links > 0)
			printf(" links=%s", stage_spec_links_name(s->links));
		if (s->unreadable > 0)
			fputs(" unreadable=skip", stdout);
		for (char *p = s->exclude, *glob; (glob = strsep(&p, "\n"));)
			printf(" exclude=%s", gradcomp_printable(glob, name, sizeof name));
		putchar('\n');
	}
	return 0;
}

/* GRADCOMP_DATA is the first, GRADCOMP_DATA_1 the second ... */
static void print_env(int i, const gradcomp_stage_result *r, int mode)
{
	char number[16] = "";
	if (i)
		snprintf(number, sizeof number, "_%d", i);
	printf("GRADCOMP_DATA%s=%s\n", number, r->path);
	if (mode == GRADCOMP_STAGE_SHARD)
		printf("GRADCOMP_DATA%s_SHARD=%u/%u\n", number, r->node, r->nnodes ? r->nnodes : 1);
}

/* Whoever reads the lines would take its end for another path, or a variable. */
static gradcomp_status path_has_newline(const char *path, gradcomp_error *err)
{
	char name[200];
	err->status = GRADCOMP_ERR_UNSUPPORTED;
	snprintf(err->text, sizeof err->text,
	         "the path %s has a newline in it, and paths are printed one a line; --json prints it",
	         gradcomp_printable(path, name, sizeof name));
	return GRADCOMP_ERR_UNSUPPORTED;
}

/* Leaves a file for the site; a stager that cannot leave it has not failed. */
static void leave_usage(const site_usage *u, const stage_show *s)
{
	char dir[4096];
	gradcomp_error err;
	if (!drop_privs_setting(SET_REPORT_METRICS, dir, sizeof dir) && *dir && site_usage_leave(dir, u, &err) &&
	    !s->quiet)
		fprintf(stderr, "%s%s\n", s->prefix, err.text);
}

/* A path that is not there may be the half of one with a comma in it. */
static void explain_commas(const struct arguments *a, gradcomp_error *err)
{
	size_t n = strlen(err->text);
	for (int i = 0; i < STAGE_SOURCES && a->specs[i]; i++)
		if (strpbrk(a->specs[i], ",\\")) {
			snprintf(err->text + n, sizeof err->text - n,
			         "; a comma separates sources, one in a path is written '\\,', and a backslash '\\\\'");
			return;
		}
}

static int stage_all(struct arguments *a, gradcomp_stage_options *o, stage_show *s, gradcomp_error *err)
{
	static gradcomp_stage_result r;
	site_usage u = {0};
	uint32_t flags = (a->dry ? GRADCOMP_STAGE_DRY_RUN : 0) | (a->shared ? GRADCOMP_STAGE_SHARED : 0);
	jsonw j;
	if (a->json) {
		json_put_start(&j, stdout);
		if (a->spec.n > 1)
			json_put_array(&j, NULL);
	}
	for (int i = 0; i < a->spec.n; i++) {
		const stage_source *src = &a->spec.source[i];

		memset(&r, 0, sizeof r);
		r.struct_size = sizeof r;
		o->source = s->source = src->path;
		o->mode = (gradcomp_stage_mode)src->mode;
		o->flags = flags | (uint32_t)src->verify | (src->links > 0 ? (uint32_t)src->links : 0) |
		           (src->unreadable > 0 ? (uint32_t)src->unreadable : 0);
		o->exclude = src->exclude;
		s->phase = GRADCOMP_STAGE_NOTICE;
		gradcomp_status st = gradcomp_stage(o, &r, err);
		stage_show_clear(s);
		if (!st && !a->json && strchr(r.path, '\n'))
			st = path_has_newline(r.path, err);
		if (st == GRADCOMP_ERR_NOTFOUND && (a->spec.n > 1 || strchr(src->path, '\\')))
			explain_commas(a, err);
		if (st)
			return (int)st;
		u.stages += src->mode != GRADCOMP_STAGE_LINK;
		u.hits += src->mode != GRADCOMP_STAGE_LINK && r.cached;
		u.read_bytes += r.read;
		if (!s->quiet)
			stage_show_result(s, &r, src->mode, a->dry);
		if (a->json)
			stage_show_json(&j, &r, src->mode, a->dry);
		else if (a->env && !a->dry)
			print_env(i, &r, src->mode);
		else if (!a->dry)
			puts(r.path);
	}
	if (a->json) {
		if (a->spec.n > 1)
			json_put_end(&j);
		json_put_finish(&j);
	}
	if (u.stages && !a->dry)
		leave_usage(&u, s);
	return 0;
}

/* The nodes of this step do not stage together: a part of each would be all of it. */
static int shard_alone(const stage_spec *spec)
{
	for (int i = 0; i < spec->n; i++)
		if (spec->source[i].mode == GRADCOMP_STAGE_SHARD)
			return stage_nodes_count() > 1;
	return 0;
}

/* Returns true for what another node said, or that it died: it need not be said once more on each. */
static bool of_another_node(const gradcomp_error *err)
{
	int node, end = 0;
	return err->status == GRADCOMP_ERR_PEER || (sscanf(err->text, "node %d (%n", &node, &end) == 1 && end);
}

int cmd_stage(int argc, char **argv)
{
	static struct arguments a;
	gradcomp_stage_options o = {.struct_size = sizeof o};
	stage_show s = {.prefix = "gradcomp: "};
	gradcomp_job *job = NULL;
	gradcomp_error err;
	int status = parse(argc, argv, &a, &o, &s);
	if (status < 0 && a.check)
		status = explain(&a.spec);
	if (status >= 0)
		goto done;
	if (a.shared && (status = drop_privs_to_shared_user()) > 0)
		goto done;
	o.progress = stage_show_progress;
	o.ctx = &s;
	command_catch_signals();
	sandbox_enter();
	if (a.rendezvous || a.pmix)
		status = stage_nodes_open(a.pmix, stop, &job, &err);
	else
		status = 0;
	if (!status && a.rendezvous && !job && shard_alone(&a.spec)) {
		fprintf(stderr, "%smode=shard needs the step's nodes to stage together, and they do not here\n",
		        s.prefix);
		status = 1;
		goto done;
	}
	if (!status) {
		o.group = job ? gradcomp_job_world(job) : NULL;
		status = stage_all(&a, &o, &s, &err);
	}
	if (status) {
		fprintf(stderr, "%s%s\n", s.prefix, err.text);
		status = status == GRADCOMP_ERR_STATE && command_caught_signal() ? 128 + command_caught_signal()
		         : of_another_node(&err)                                 ? 3
		                                                                 : 1;
	}
	gradcomp_job_free(job, NULL);
done:
	stage_spec_clear(&a.spec);
	return status;
}
