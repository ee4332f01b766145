/* Making a copy on the nodes that have none: room, the files that are there from an
 * interrupted one, the exchange, and its publication when all nodes have all. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cache/cache.h"
#include "together.h"

#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

struct produce {
	staging *s;
	bool making; /* this node has the right to */
	int temp;
	stage_filling filling;
	unsigned char *needed;
	source *copy; /* this node's, for the others */
	bool ended;   /* before its end: another node has failed */
	bool published;
};

static gradcomp_status make_room(staging *s, gradcomp_error *err)
{
	uint64_t bytes, inodes;
	struct statvfs fs;
	if (fstatvfs(s->area, &fs) < 0 || !fs.f_frsize)
		return stage_fail(err, "ask for the free space of", s->run->where);
	stage_needs(&s->m, fs.f_frsize, &bytes, &inodes);
	return cache_make_room(s->run, s->area, s->key, bytes, inodes, err);
}

/* What a dead producer left is gone on with. */
static gradcomp_status begin(struct produce *p, gradcomp_error *err)
{
	staging *s = p->s;
	char name[STAGE_KEY_BYTES + 8];
	gradcomp_status status;
	for (size_t i = 0; i < s->m.n; i++)
		s->m.entries[i].sealed = false; /* checksums of another node's copy */
	stage_sweep(s->area, s->key);
	snprintf(name, sizeof name, "%s.tmp", s->key);
	s->run->bytes_total = s->m.bytes;
	if ((mkdirat(s->area, name, 0700) < 0 && errno != EEXIST) ||
	    (p->temp = openat(s->area, name, OPEN_DIR)) < 0)
		return stage_write_failed(s->run, name, err);
	stage_journal_read(&s->m, p->temp);
	if (!(status = make_room(s, err)))
		status = stage_fill_begin(s->run, &s->m, p->temp, &p->filling, err);
	s->resumed = p->filling.resumed;
	return status;
}

/* Which files are to be exchanged. */
static gradcomp_status agree_on_files(struct produce *p, gradcomp_error *err)
{
	staging *s = p->s;
	size_t n = s->m.n / 8 + 1;
	gradcomp_status status = GRADCOMP_OK;
	if (!(p->needed = calloc(1, n)))
		status = error_set(err, GRADCOMP_ERR_NOMEM, "out of memory with a list of %zu files", s->m.n);
	else if (p->making)
		status = begin(p, err);
	if ((status = crew_agree(s->crew, status, err)))
		return status;
	if (p->making)
		memcpy(p->needed, p->filling.wanted, n);
	return s->run->options->mode == GRADCOMP_STAGE_SHARD ? GRADCOMP_OK : crew_or(s->crew, p->needed, n, err);
}

static gradcomp_status open_copy(struct produce *p, gradcomp_error *err)
{
	char path[4096 + STAGE_KEY_BYTES + 8];
	snprintf(path, sizeof path, "%s/%s/data", p->s->run->where, p->s->key);
	return source_open(p->s->run->config, path, stage_run_wait(p->s->run), &p->copy, err);
}

/* Those who have a copy give it to the others; where nobody has one, all read. */
static gradcomp_status copy(struct produce *p, const unsigned char *holders, gradcomp_error *err)
{
	static const exchange_ring alone = {.nnodes = 1};
	staging *s = p->s;
	bool shard = s->run->options->mode == GRADCOMP_STAGE_SHARD, some = false;
	size_t me = (size_t)s->crew->ring.node;
	exchange_counts counts = {0};
	exchange *x = NULL;
	gradcomp_status status = shard ? GRADCOMP_OK : crew_ring(s->crew, err);
	for (size_t i = 0; !shard && i < (size_t)s->crew->ring.nnodes; i++)
		some = some || piece_bit(holders, i);
	exchange_plan plan = {.run = s->run, .m = &s->m, .ring = shard ? &alone : &s->crew->ring, .server = !some,
	                      .owners = some ? holders : NULL, .needed = p->needed,
	                      .wanted = p->making ? p->filling.wanted : NULL, .temp = p->temp,
	                      .data = p->filling.data};
	if (!status && some && piece_bit(holders, me) && !(status = open_copy(p, err)))
		plan.from = p->copy;
	else if (!status && !some && (p->making || !shard) && !(status = staging_open(s, err)))
		plan.from = s->from;
	if (!status && !p->making)
		stage_run_phase(s->run, GRADCOMP_STAGE_COPY, s->m.files, s->m.bytes);
	if (!status && (p->making || !shard))
		status = exchange_begin(&plan, &x, err);
	status = crew_agree(s->crew, status, err);
	if (!x)
		return status;
	if (status) {
		exchange_end(x, false, &counts, NULL);
		return status;
	}
	status = exchange_end(x, true, &counts, err);
	s->read += counts.read;
	s->received += counts.received;
	p->ended = counts.ended;
	return status;
}

/* All that makes it a copy but its name. */
static gradcomp_status complete(struct produce *p, const unsigned char *holders, gradcomp_error *err)
{
	staging *s = p->s;
	gradcomp_status status = copy(p, holders, err);
	if (!status && !p->ended && p->making)
		status = stage_fill_end(s->run, &s->m, &p->filling, err);
	/* One node's look at the source is enough. */
	if (!status && !p->ended && s->from && !s->crew->ring.node)
		status = stage_unchanged(s->run, &s->m, s->from, err);
	if (!status && !p->ended && p->making && s->run->options->flags & GRADCOMP_STAGE_VERIFY)
		status = stage_verify(s->run, &s->m, p->temp, err);
	if ((status = crew_agree(s->crew, status, err)) || !p->ended)
		return status;
	return error_set(err, GRADCOMP_ERR_INTERNAL, "an exchange ended and no node says why");
}

static gradcomp_status publish(struct produce *p, gradcomp_error *err)
{
	staging *s = p->s;
	stage_run_phase(s->run, GRADCOMP_STAGE_SYNC, s->m.files, s->m.bytes);
	gradcomp_status status = stage_run_tick(s->run, err);
	if (!status && s->run->options->flags & GRADCOMP_STAGE_SHARED)
		status = cache_open_to_all(s->run, s->area, s->key, p->temp, &s->m, err);
	if (!status && !(status = stage_publish(s->run, &s->m, s->area, s->key, p->temp, err))) {
		p->published = true;
		s->stale[0] = 0;
	}
	return status;
}

/* A copy that somebody's death, or another node's failure, interrupted is gone on with by
 * the next job; where this node's disk or its user was the reason, it only takes room. */
static void give_up(struct produce *p, gradcomp_status status)
{
	staging *s = p->s;
	char name[STAGE_KEY_BYTES + 8];
	if (s->crew->ring.nnodes > 1 && status != GRADCOMP_ERR_STATE && !atomic_load(&s->run->unwritable))
		return;
	snprintf(name, sizeof name, "%s.tmp", s->key);
	if (stage_remove(s->area, name) < 0)
		stage_run_notice(s->run, "%s/%s could not be removed", s->run->where, name);
}

gradcomp_status staging_produce(staging *s, staging_state state, const unsigned char *holders, gradcomp_error *err)
{
	struct produce p = {.s = s, .making = state == STAGING_LOCKED, .temp = -1, .filling = {.data = -1}};
	gradcomp_status status = GRADCOMP_OK;
	if (s->run->options->mode != GRADCOMP_STAGE_SHARD)
		status = crew_list(s->crew, &s->m, err);
	if (!status && strcmp(s->m.key, s->key))
		status = error_set(err, GRADCOMP_ERR_INTERNAL, "the list of %s has another key than was agreed", s->source);
	if (!(status = crew_agree(s->crew, status, err)) && !(status = agree_on_files(&p, err)) &&
	    !(status = complete(&p, holders, err)) && p.making)
		status = publish(&p, err);
	stage_fill_free(&p.filling);
	source_close(p.copy);
	free(p.needed);
	if (p.temp >= 0)
		close(p.temp);
	if (status && p.temp >= 0 && !p.published)
		give_up(&p, status);
	return status;
}
