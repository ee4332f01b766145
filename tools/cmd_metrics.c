/* gradcomp metrics: sums up what jobs and stagers have left in the directory of report.metrics, and adds
 * it to the totals of a file that node_exporter reads. That file is the memory: what was counted up to
 * now is read from it. It names the files that it counted last, so that of a run that was killed
 * before it had removed them none is counted twice. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fileio.h"
#include "base/number.h"
#include "base/outfile.h"
#include "base/text.h"
#include "job/site_usage.h"
#include "job/slow_rank.h"
#include "tools/cmd_cache.h"
#include "tools/commands.h"
#include "tools/drop_privs.h"

static const char usage[] = "usage: gradcomp metrics [--dir DIR] [--output FILE]\n\n"
			    "Prints what the jobs and stagers of this node have left in the directory of the\n"
			    "setting report.metrics, summed up, in the text format that Prometheus reads.\n\n"
			    "  --dir DIR      another directory\n"
			    "  --output FILE  add it to the totals in FILE, and remove what was counted; for the\n"
			    "                 directory of node_exporter's textfile collector. For one process at\n"
			    "                 a time, which may write there: root's, from a timer\n\n"
			    "As root it also tells how large the caches of this node's users are.\n";

static const char first_line[] = "# gradcomp metrics\n";
static const char counted_mark[] = "# counted ";

#define COMPRESSORS_MAX 64 /* more go to "other" */
#define FILES_MAX 100000   /* in one run; the rest is for the next */
#define LINE_MAX_BYTES 300

typedef struct compressor_totals {
	char name[SITE_USAGE_NAME_MAX];
	uint64_t jobs, failed, steps, dense_bytes, wire_bytes, saved_bytes;
} compressor_totals;

typedef struct kind_totals {
	uint64_t jobs, lost_steps;
} kind_totals;

typedef struct totals {
	compressor_totals of[COMPRESSORS_MAX];
	size_t n;
	kind_totals held_up[SLOW_KINDS];
	uint64_t stages, hits, read_bytes, refused;
} totals;

typedef struct metric {
	const char *name, *help;
	size_t at;
} metric;

static const metric each_compressor[] = {
	{"gradcomp_jobs_total", "Jobs that have ended with rank 0 on this node.", offsetof(compressor_totals, jobs)},
	{"gradcomp_jobs_failed_total", "Those of them that failed.", offsetof(compressor_totals, failed)},
	{"gradcomp_steps_total", "Steps that they reduced.", offsetof(compressor_totals, steps)},
	{"gradcomp_uncompressed_bytes_total", "Bytes that rank 0 would have sent uncompressed.",
         offsetof(compressor_totals, dense_bytes)},
	{"gradcomp_sent_bytes_total", "Payload bytes that rank 0 sent.", offsetof(compressor_totals, wire_bytes)},
	{"gradcomp_saved_bytes_total", "Bytes that rank 0 did not have to send.",
         offsetof(compressor_totals, saved_bytes)},
};
static const metric each_kind[] = {
	{"gradcomp_held_up_jobs_total", "Jobs in which one rank cost the others more than 5 % of a step.",
         offsetof(kind_totals, jobs)},
	{"gradcomp_held_up_steps_total", "Steps that they could have done in that time.",
         offsetof(kind_totals, lost_steps)},
};
static const metric node_wide[] = {
	{"gradcomp_cache_requests_total", "Datasets that were to be in the cache of this node.",
         offsetof(totals, stages)},
	{"gradcomp_cache_hits_total", "Those of them that were in it.", offsetof(totals, hits)},
	{"gradcomp_cache_read_bytes_total", "Bytes of datasets that were read from their sources.",
         offsetof(totals, read_bytes)},
	{"gradcomp_metrics_refused_total",
         "Files in the directory of report.metrics that jobs of gradcomp have not written.", offsetof(totals, refused)},
};
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static uint64_t *counter(void *base, const metric *m)
{
	return (uint64_t *)((char *)base + m->at);
}

/* Adds up what jobs say, which is theirs to say; a total that would pass 2^63 stays there. */
static void add(uint64_t *total, uint64_t more)
{
	*total = *total > INT64_MAX - more ? INT64_MAX : *total + more;
}

/* A label is for plugins of the site. Others, which users can name as they like, are one. */
static bool of_the_site(const char *name)
{
	char path[4096], file[4096 + 64];
	if (!strcmp(name, "auto"))
		return true;
	if (drop_privs_setting(SET_GRADCOMP_PLUGIN_PATH, path, sizeof path))
		return false;
	for (char *rest = path, *dir; (dir = strsep(&rest, ":"));) {
		snprintf(file, sizeof file, "%s/compressors/%s.so", dir, name);
		if (!access(file, F_OK))
			return true;
	}
	return false;
}

static compressor_totals *totals_of(totals *t, const char *name)
{
	for (size_t i = 0; i < t->n; i++)
		if (!strcmp(t->of[i].name, name))
			return &t->of[i];
	if (t->n == COMPRESSORS_MAX)
		return &t->of[COMPRESSORS_MAX - 1];
	if (t->n == COMPRESSORS_MAX - 1)
		name = "other";
	snprintf(t->of[t->n].name, SITE_USAGE_NAME_MAX, "%s", name);
	return &t->of[t->n++];
}

static void add_usage(totals *t, const site_usage *u)
{
	compressor_totals *c;
	add(&t->stages, u->stages);
	add(&t->hits, u->hits);
	add(&t->read_bytes, u->read_bytes);
	if (!*u->compressor)
		return;
	if (u->held_up) {
		kind_totals *k = &t->held_up[slow_rank_family(u->held_up)];

		add(&k->jobs, 1);
		add(&k->lost_steps, u->lost_steps);
	}
	c = totals_of(t, of_the_site(u->compressor) ? u->compressor : "other");
	add(&c->jobs, 1);
	add(&c->failed, u->failed);
	add(&c->steps, u->steps);
	add(&c->dense_bytes, u->dense_bytes);
	add(&c->wire_bytes, u->wire_bytes);
	add(&c->saved_bytes, u->dense_bytes > u->wire_bytes ? u->dense_bytes - u->wire_bytes : 0);
}

static bool is_one(const char *name)
{
	size_t n = strlen(name), suffix = sizeof SITE_USAGE_SUFFIX - 1;
	return n == 32 + suffix && strspn(name, "0123456789abcdef") == 32 && !strcmp(name + 32, SITE_USAGE_SUFFIX);
}

/* Nothing is followed, and nothing is waited for: who wrote it may mean harm. */
static bool read_one(int dir, const char *name, site_usage *out)
{
	int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	char text[SITE_USAGE_FILE_MAX + 1];
	struct stat st;
	int64_t n = -1;
	if (fd < 0)
		return false;
	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_nlink == 1)
		n = fileio_read(fd, text, sizeof text - 1, 0);
	close(fd);
	if (n < 0)
		return false;
	text[n] = 0;
	return site_usage_parse(text, out);
}

/* Counts the files of the directory, and names each in `list` unless that is NULL; 0, or the exit status. */
static int count_files(int dir, totals *t, FILE *list)
{
	int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = copy < 0 ? NULL : fdopendir(copy);
	int left = FILES_MAX;
	struct stat st;
	site_usage u;
	if (!d) {
		fprintf(stderr, "gradcomp: cannot list the directory of report.metrics: %s\n", strerror(errno));
		if (copy >= 0)
			close(copy);
		return 1;
	}
	for (struct dirent *de; left && (de = readdir(d));) {
		/* A folder cannot be removed like a file, so it would be met again and again. */
		if (!is_one(de->d_name) || fstatat(dir, de->d_name, &st, AT_SYMLINK_NOFOLLOW) || S_ISDIR(st.st_mode))
			continue;
		left--;
		if (read_one(dir, de->d_name, &u))
			add_usage(t, &u);
		else
			add(&t->refused, 1);
		if (list)
			fprintf(list, "%s%s\n", counted_mark, de->d_name);
	}
	closedir(d);
	return 0;
}

/* Adds to what the metric of this name counts. */
static void take_value(const metric *m, size_t n, const char *name, void *base, uint64_t value)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(name, m[i].name))
			add(counter(base, &m[i]), value);
}

/* NAME{LABEL="..."} VALUE, or NAME VALUE, without its newline. Others belong to gauges, which are measured anew. */
static void take_total(char *line, totals *t)
{
	static const char compressor[] = "compressor=\"", kind[] = "kind=\"";
	char *value = strrchr(line, ' '), *label = strchr(line, '{'), *end;
	int64_t n;
	if (!value || number_int(value + 1, &n) != NUMBER_OK || n < 0)
		return;
	*value = 0;
	if (!label) {
		take_value(node_wide, COUNT(node_wide), line, t, (uint64_t)n);
		return;
	}
	*label++ = 0;
	end = strrchr(label, '"');
	if (!end || strcmp(end, "\"}"))
		return;
	*end = 0;
	if (!strncmp(label, compressor, sizeof compressor - 1) && !strchr(label + sizeof compressor - 1, '"'))
		take_value(each_compressor, COUNT(each_compressor), line, totals_of(t, label + sizeof compressor - 1),
		           (uint64_t)n);
	for (int k = SLOW_NOTHING + 1; !strncmp(label, kind, sizeof kind - 1) && k < SLOW_KINDS; k++)
		if (slow_rank_family((slow_kind)k) == (slow_kind)k &&
		    !strcmp(label + sizeof kind - 1, slow_rank_kind((slow_kind)k)))
			take_value(each_kind, COUNT(each_kind), line, &t->held_up[k], (uint64_t)n);
}

/* Adds what is in the file to the totals, and removes the files that it has counted. A file that is not there has
 * nothing. */
static int take_file(const char *path, int dir, totals *t)
{
	char line[LINE_MAX_BYTES], name[TEXT_NAME_MAX];
	FILE *f = fopen(path, "re");
	int64_t n;
	int status = 0;
	gradcomp_printable(path, name, sizeof name);
	if (!f && errno == ENOENT)
		return 0;
	if (!f) {
		fprintf(stderr, "gradcomp: cannot read %s: %s\n", name, strerror(errno));
		return 1;
	}
	n = fileio_line(f, line, sizeof line);
	if (n <= 0 || strcmp(line, first_line)) {
		fprintf(stderr,
		        "gradcomp: %s is there, and gradcomp metrics has not written it; name another file or remove it\n",
		        name);
		status = 1;
	}
	while (!status && (n = fileio_line(f, line, sizeof line)) > 0) {
		line[n - 1] = 0;
		if (*line != '#')
			take_total(line, t);
		else if (!strncmp(line, counted_mark, sizeof counted_mark - 1) &&
		         is_one(line + sizeof counted_mark - 1) && unlinkat(dir, line + sizeof counted_mark - 1, 0) &&
		         errno != ENOENT && errno != EISDIR) {
			fprintf(stderr, "gradcomp: cannot remove %s, which has been counted: %s\n",
			        line + sizeof counted_mark - 1, strerror(errno));
			status = 1;
		}
	}
	fclose(f);
	return status;
}

typedef struct cache_size {
	uint64_t bytes, copies;
} cache_size;

static cache_size *cache_total; /* shared with the children that have become users */

static int measure_cache(const cache_request *r)
{
	static gradcomp_cache_usage u;
	gradcomp_error err;
	memset(&u, 0, sizeof u);
	u.struct_size = sizeof u;
	if (gradcomp_cache_get_usage(&r->options, &u, &err))
		return command_failed(&err);
	add(&cache_total->bytes, u.bytes);
	add(&cache_total->copies, u.entries);
	return 0;
}

static void print_head(FILE *out, const char *name, const char *help, const char *type)
{
	fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Prints the areas; the reason why one cannot be measured is on stderr, and the others count. */
static void print_cache(FILE *out)
{
	cache_request r = {.options = {.struct_size = sizeof r.options}};
	cache_total = mmap(NULL, sizeof *cache_total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (cache_total == MAP_FAILED) {
		fprintf(stderr, "gradcomp: no memory to measure the caches\n");
		return;
	}
	cache_each_user(&r, measure_cache);
	print_head(out, "gradcomp_cache_bytes", "What datasets take in the caches of this node's users.", "gauge");
	fprintf(out, "gradcomp_cache_bytes %" PRIu64 "\n", cache_total->bytes);
	print_head(out, "gradcomp_cache_copies", "How many datasets they are.", "gauge");
	fprintf(out, "gradcomp_cache_copies %" PRIu64 "\n", cache_total->copies);
}

static void print_totals(FILE *out, totals *t)
{
	for (size_t i = 0; i < COUNT(each_compressor); i++) {
		const metric *m = &each_compressor[i];

		print_head(out, m->name, m->help, "counter");
		for (size_t k = 0; k < t->n; k++)
			fprintf(out, "%s{compressor=\"%s\"} %" PRIu64 "\n", m->name, t->of[k].name,
			        *counter(&t->of[k], m));
	}
	for (size_t i = 0; i < COUNT(each_kind); i++) {
		const metric *m = &each_kind[i];

		print_head(out, m->name, m->help, "counter");
		for (int k = SLOW_NOTHING + 1; k < SLOW_KINDS; k++)
			if (t->held_up[k].jobs)
				fprintf(out, "%s{kind=\"%s\"} %" PRIu64 "\n", m->name, slow_rank_kind((slow_kind)k),
				        *counter(&t->held_up[k], m));
	}
	for (size_t i = 0; i < COUNT(node_wide); i++) {
		print_head(out, node_wide[i].name, node_wide[i].help, "counter");
		fprintf(out, "%s %" PRIu64 "\n", node_wide[i].name, *counter(t, &node_wide[i]));
	}
}

static int print_all(FILE *out, int dir, totals *t, int removes)
{
	int status;
	fputs(first_line, out);
	fflush(out); /* before there are children */
	status = count_files(dir, t, removes ? out : NULL);
	if (status)
		return status;
	print_totals(out, t);
	fflush(out);
	if (geteuid() == 0)
		print_cache(out);
	return 0;
}

static int publish(const char *path, int dir)
{
	totals t = {0}, again = {0};
	gradcomp_error err;
	outfile *f;
	int status = take_file(path, dir, &t);
	if (status)
		return status;
	umask(022); /* node_exporter reads it, as somebody else */
	if (outfile_open("file of metrics", path, 0, &f, &err))
		return command_failed(&err);
	status = print_all(outfile_stream(f), dir, &t, 1);
	if (status) {
		outfile_abandon(f);
		return status;
	}
	if (outfile_close(f, &err))
		return command_failed(&err);
	return take_file(path, dir, &again);
}

int cmd_metrics(int argc, char **argv)
{
	const char *dir = NULL, *output = NULL;
	const command_option options[] = {{"--dir", &dir, NULL}, {"--output", &output, NULL}, {0}};
	int status = command_take_options(argc, argv, usage, options, NULL, 0), fd;
	char set[4096];
	totals t = {0};
	if (status >= 0)
		return status;
	if (!dir) {
		if (drop_privs_setting(SET_REPORT_METRICS, set, sizeof set))
			return 1;
		dir = set;
	}
	if (!*dir) {
		fputs("gradcomp: report.metrics is not set in gradcomp.conf, so jobs leave no figures; see gradcomp-metrics(1)\n",
		      stderr);
		return 1;
	}
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0) {
		char name[TEXT_NAME_MAX];

		fprintf(stderr, "gradcomp: cannot open the directory %s: %s\n",
		        gradcomp_printable(dir, name, sizeof name), strerror(errno));
		return 1;
	}
	status = output ? publish(output, fd) : print_all(stdout, fd, &t, 0);
	close(fd);
	return status;
}
