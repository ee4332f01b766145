/* gradcomp stage DIR: a copy of DIR in the user's cache on this node. The path of
 * the copy is all that goes to stdout; progress and errors go to stderr. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "gradcomp/stage.h"
#include "json.h"
#include "number.h"

/* Seconds between two lines of progress, on a terminal and in a file. */
#define EVERY_TTY 0.2
#define EVERY_PLAIN 5.0

static volatile sig_atomic_t caught;

static void on_signal(int sig)
{
	caught = sig;
}

struct show {
	char prefix[128]; /* "gradcomp: " or "gradcomp: n2: " */
	const char *source;
	int tty, quiet, open; /* open: an unfinished line stands on the terminal */
	gradcomp_stage_phase phase;
	double next; /* seconds of the phase at which the next line is due */
};

static void clear_line(struct show *s)
{
	if (s->open)
		fputs("\r\033[K", stderr);
	s->open = 0;
}

static int amount(char *out, size_t room, const char *verb, const gradcomp_stage_progress *p, const char *source)
{
	char done[32], total[32], rate[32];
	uint64_t bytes = p->bytes < p->bytes_total ? p->bytes : p->bytes_total;
	double speed = p->seconds > 0 ? (double)p->bytes / p->seconds : 0;
	int n = snprintf(out, room, "%s %s: %llu of %llu files, %s of %s", verb, source,
	                 (unsigned long long)p->files, (unsigned long long)p->files_total,
	                 gradcomp_size_text(bytes, done), gradcomp_size_text(p->bytes_total, total));
	if (speed > 0 && p->seconds > 0.5)
		n += snprintf(out + n, room - (size_t)n, ", %s/s, %.0f s left",
		              gradcomp_size_text((uint64_t)speed, rate), (double)(p->bytes_total - bytes) / speed);
	return n;
}

static void describe(char *out, size_t room, const gradcomp_stage_progress *p, const char *source)
{
	switch (p->phase) {
	case GRADCOMP_STAGE_SCAN:
		snprintf(out, room, "listing %s: %llu files", source, (unsigned long long)p->files);
		break;
	case GRADCOMP_STAGE_WAIT:
		snprintf(out, room, "waiting for process %lld, which stages the same data, for %.0f s",
		         (long long)p->pid, p->seconds);
		break;
	case GRADCOMP_STAGE_COPY:
		amount(out, room, "staging", p, source);
		break;
	case GRADCOMP_STAGE_CHECK:
		amount(out, room, "checking the copy of", p, source);
		break;
	default:
		snprintf(out, room, "bringing the copy of %s to the disk", source);
	}
}

static int on_progress(void *ctx, const gradcomp_stage_progress *p)
{
	struct show *s = ctx;
	char name[120], line[400];
	if (p->phase == GRADCOMP_STAGE_NOTICE) {
		clear_line(s);
		fprintf(stderr, "%s%s\n", s->prefix, p->notice);
		return caught != 0;
	}
	if (s->quiet)
		return caught != 0;
	if (p->phase != s->phase) {
		s->phase = p->phase;
		s->next = s->tty ? 0 : EVERY_PLAIN;
	}
	if (p->seconds >= s->next && (s->tty || p->phase != GRADCOMP_STAGE_SYNC)) {
		s->next = p->seconds + (s->tty ? EVERY_TTY : EVERY_PLAIN);
		describe(line, sizeof line, p, gradcomp_printable(s->source, name, sizeof name));
		clear_line(s);
		fprintf(stderr, "%s%s%s", s->prefix, line, s->tty ? "" : "\n");
		s->open = s->tty;
	}
	return caught != 0;
}

static const char usage[] = "usage: gradcomp stage [OPTION]... DIRECTORY\n"
			    "Copies DIRECTORY into your cache on this node, unless a copy is there already,\n"
			    "and prints the path of the copy.\n\n"
			    "  --cache-dir DIR    the cache (setting stage.cache_dir)\n"
			    "  --dry-run          say what would be done; write nothing\n"
			    "  --json             print an object instead of the path\n"
			    "  --label TEXT       put TEXT before every message, a node's name for one\n"
			    "  --max-bytes SIZE   refuse a larger dataset: 500M, 2T (setting stage.max_bytes)\n"
			    "  --quiet            print errors and warnings only\n"
			    "  --verify           read the copy and compare it with its checksums\n"
			    "  --workers N        threads that copy, 1 to 64 (setting stage.workers)\n\n"
			    "Exit status: 0 there is a copy, 1 there is none, 2 wrong usage, 128+N signal N.\n";

struct arguments {
	const char *source, *label, *max_bytes, *workers;
	int dry, verify, json;
};

/* -1 go on, else the exit status. */
static int parse(int argc, char **argv, struct arguments *a, gradcomp_stage_options *o, struct show *s)
{
	const command_option options[] = {
		{"--cache-dir", &o->cache_dir, NULL},
		{"--dry-run", NULL, &a->dry},
		{"--json", NULL, &a->json},
		{"--label", &a->label, NULL},
		{"--quiet", NULL, &s->quiet},
		{"--verify", NULL, &a->verify},
		{"--max-bytes", &a->max_bytes, NULL},
		{"--workers", &a->workers, NULL},
		{0},
	};
	char name[120];
	int64_t n;
	int status = take_options(argc, argv, usage, options, &a->source, 1);
	if (status >= 0)
		return status;
	if (!a->source || !*a->source)
		return usage_error(usage, "stage needs a directory");
	if (a->max_bytes) {
		if (number_size(a->max_bytes, &n) != NUMBER_OK || n < 1)
			return usage_error(usage, "--max-bytes is '%s'; give a size such as 500M or 2T",
			                   gradcomp_printable(a->max_bytes, name, sizeof name));
		o->max_bytes = (uint64_t)n;
	}
	if (a->workers) {
		if (number_int(a->workers, &n) != NUMBER_OK || n < 1 || n > 64)
			return usage_error(usage, "--workers is '%s'; it can be 1 to 64",
			                   gradcomp_printable(a->workers, name, sizeof name));
		o->workers = (uint32_t)n;
	}
	if (a->label)
		snprintf(s->prefix, sizeof s->prefix, "gradcomp: %s: ", gradcomp_printable(a->label, name, 100));
	o->source = s->source = a->source;
	o->flags = (a->dry ? GRADCOMP_STAGE_DRY_RUN : 0) | (a->verify ? GRADCOMP_STAGE_VERIFY : 0);
	return -1;
}

static void print_json(const gradcomp_stage_result *r, int dry)
{
	jsonw j;
	jsonw_start(&j, stdout);
	jsonw_object(&j, NULL);
	jsonw_string(&j, "source", r->source);
	jsonw_string(&j, "path", r->path);
	jsonw_string(&j, "key", r->key);
	jsonw_bool(&j, "cached", (int)r->cached);
	jsonw_bool(&j, "dry_run", dry);
	jsonw_uint(&j, "files", r->files);
	jsonw_uint(&j, "bytes", r->bytes);
	jsonw_uint(&j, "resumed_bytes", r->resumed);
	jsonw_float(&j, "seconds", r->seconds);
	jsonw_end(&j);
	jsonw_finish(&j);
}

static void closing_line(const struct show *s, const gradcomp_stage_result *r, int dry)
{
	char source[256], path[512], bytes[32], rate[32], part[32];
	gradcomp_printable(r->source, source, sizeof source);
	gradcomp_printable(r->path, path, sizeof path);
	gradcomp_size_text(r->bytes, bytes);
	unsigned long long files = r->files;
	const char *plural = files == 1 ? "" : "s";
	if (r->cached) {
		fprintf(stderr, "%susing cached copy of %s (%llu file%s, %s)\n", s->prefix, source, files, plural,
		        bytes);
	} else if (dry) {
		fprintf(stderr, "%swould stage %llu file%s, %s of %s into %s\n", s->prefix, files, plural, bytes,
		        source, path);
	} else {
		uint64_t speed = r->seconds > 0 ? (uint64_t)((double)(r->bytes - r->resumed) / r->seconds) : 0;
		fprintf(stderr, "%sstaged %llu file%s, %s in %.1f s (%s/s) into %s", s->prefix, files, plural,
		        bytes, r->seconds, gradcomp_size_text(speed, rate), path);
		if (r->resumed)
			fprintf(stderr, "; %s were there from an interrupted copy",
			        gradcomp_size_text(r->resumed, part));
		fputc('\n', stderr);
	}
}

static void catch_signals(void)
{
	static const int sigs[] = {SIGINT, SIGTERM, SIGHUP};
	struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	sigemptyset(&sa.sa_mask);
	for (size_t i = 0; i < sizeof sigs / sizeof sigs[0]; i++) {
		struct sigaction old;
		/* What the parent ignores (nohup) stays ignored. */
		if (sigaction(sigs[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
			sigaction(sigs[i], &sa, NULL);
	}
	/* A reader that went away must not leave half a copy behind. */
	signal(SIGPIPE, SIG_IGN);
}

int cmd_stage(int argc, char **argv)
{
	gradcomp_stage_options o = {.struct_size = sizeof o};
	static gradcomp_stage_result r;
	struct show s = {.prefix = "gradcomp: ", .tty = isatty(STDERR_FILENO), .phase = GRADCOMP_STAGE_NOTICE};
	struct arguments a = {0};
	gradcomp_error err;
	int status = parse(argc, argv, &a, &o, &s);
	if (status >= 0)
		return status;
	o.progress = on_progress;
	o.ctx = &s;
	r.struct_size = sizeof r;
	catch_signals();
	gradcomp_status staged = gradcomp_stage(&o, &r, &err);
	clear_line(&s);
	if (staged) {
		fprintf(stderr, "%s%s\n", s.prefix, err.text);
		return staged == GRADCOMP_ERR_STATE && caught ? 128 + caught : 1;
	}
	if (!s.quiet)
		closing_line(&s, &r, a.dry);
	if (a.json)
		print_json(&r, a.dry);
	else if (!a.dry)
		puts(r.path);
	return 0;
}
