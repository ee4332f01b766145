#include "tools/stage_show.h"

#include <stdio.h>
#include <string.h>

#include "tools/commands.h"
#include "tools/stage_spec.h"

/* Seconds between two lines of progress, rewritten ones and others. */
#define EVERY_LIVE 0.2
#define EVERY_RETURN 0.5 /* over the network */
#define EVERY_PLAIN 5.0
#define NUMBERS 80 /* bytes of a line beside the source's name, about */
#define NAME_MIN 12
#define NAME_MAX 120

void stage_show_clear(stage_show *s)
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
	int n = snprintf(out, room, "%s %s: %llu of %llu files, %s of %s", verb, source, (unsigned long long)p->files,
	                 (unsigned long long)p->files_total, gradcomp_size_text(bytes, done),
	                 gradcomp_size_text(p->bytes_total, total));
	if (speed > 0 && p->seconds > 0.5)
		n += snprintf(out + n, room - (size_t)n, ", %s/s, %.0f s left",
		              gradcomp_size_text((uint64_t)speed, rate), (double)(p->bytes_total - bytes) / speed);
	return n;
}

static void describe(char *out, size_t room, const gradcomp_stage_progress *p, const char *source)
{
	switch (p->phase) {
	case GRADCOMP_STAGE_LIST:
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

int stage_show_progress(void *ctx, const gradcomp_stage_progress *p)
{
	static const double every[] = {EVERY_PLAIN, EVERY_LIVE, EVERY_RETURN};
	static const char *const end[] = {"\n", "", "\r"};
	stage_show *s = ctx;
	char name[NAME_MAX], line[400];
	int room = s->live ? s->columns - NUMBERS - (int)strlen(s->prefix) : NAME_MAX;
	room = room < NAME_MIN ? NAME_MIN : room < NAME_MAX ? room : NAME_MAX;
	if (p->phase == GRADCOMP_STAGE_NOTICE) {
		stage_show_clear(s);
		fprintf(stderr, "%s%s\n", s->prefix, p->notice);
		return command_caught_signal() != 0;
	}
	if (s->quiet)
		return command_caught_signal() != 0;
	if (p->phase != s->phase) {
		s->phase = p->phase;
		s->next = s->live == STAGE_TERMINAL ? 0 : every[s->live];
	}
	if (p->seconds >= s->next && (s->live || p->phase != GRADCOMP_STAGE_SYNC)) {
		s->next = p->seconds + every[s->live];
		describe(line, sizeof line, p, gradcomp_printable(s->source, name, (size_t)room));
		stage_show_clear(s);
		/* A line that wraps cannot be rewritten. */
		fprintf(stderr, "%s%.*s%s", s->prefix,
		        s->live ? s->columns - (int)strlen(s->prefix) - 1 : (int)sizeof line, line, end[s->live]);
		s->open = s->live == STAGE_TERMINAL;
	}
	return command_caught_signal() != 0;
}

static const char *plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}

void stage_show_result(const stage_show *s, const gradcomp_stage_result *r, int mode, int dry)
{
	char source[256], path[512], bytes[32], rate[32], part[32], on[48] = "";
	unsigned long long files = r->files;

	gradcomp_printable(r->source, source, sizeof source);
	gradcomp_printable(r->path, path, sizeof path);
	gradcomp_size_text(r->bytes, bytes);
	if (r->nnodes > 1)
		snprintf(on, sizeof on, " on %s%u nodes", mode == GRADCOMP_STAGE_SHARD ? "parts of " : "", r->nnodes);
	if (mode == GRADCOMP_STAGE_LINK) {
		fprintf(stderr, "%schecked %llu file%s, %s of %s; it is used as it is\n", s->prefix, files,
		        plural(files), bytes, source);
	} else if (r->cached) {
		fprintf(stderr, "%susing cached copy of %s (%llu file%s, %s)%s\n", s->prefix, source, files,
		        plural(files), bytes, on);
	} else if (dry) {
		fprintf(stderr, "%swould stage %llu file%s, %s of %s into %s\n", s->prefix, files, plural(files), bytes,
		        source, path);
	} else {
		uint64_t speed = r->seconds > 0 ? (uint64_t)((double)(r->bytes - r->resumed) / r->seconds) : 0;
		fprintf(stderr, "%sstaged %llu file%s, %s%s in %.1f s (%s/s) into %s", s->prefix, files, plural(files),
		        bytes, on, r->seconds, gradcomp_size_text(speed, rate), path);
		if (r->resumed)
			fprintf(stderr, "; %s were there from an interrupted copy",
			        gradcomp_size_text(r->resumed, part));
		fputc('\n', stderr);
	}
}

void stage_show_json(jsonw *j, const gradcomp_stage_result *r, int mode, int dry)
{
	json_put_object(j, NULL);
	json_put_string(j, "source", r->source);
	json_put_string(j, "path", r->path);
	json_put_string(j, "key", r->key);
	json_put_string(j, "mode", stage_spec_mode_name(mode));
	json_put_bool(j, "cached", (int)r->cached);
	json_put_bool(j, "dry_run", dry);
	json_put_uint(j, "files", r->files);
	json_put_uint(j, "bytes", r->bytes);
	json_put_uint(j, "left_out", r->left_out);
	json_put_uint(j, "resumed_bytes", r->resumed);
	json_put_uint(j, "read_bytes", r->read);
	json_put_uint(j, "received_bytes", r->received);
	json_put_uint(j, "node", r->node);
	json_put_uint(j, "nodes", r->nnodes);
	json_put_float(j, "seconds", r->seconds);
	json_put_end(j);
}
