/* Finds out if the nodes' copies can be used: they must all have the same content and, if that is asked for, the
 * content of the source as it is now. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "io/stage/stage_internal.h"

/* Sums up all files' checksums, one after the other. */
static void sum_up(const stage_manifest *m, unsigned char sum[SHA256_BYTES])
{
	sha256 hash;
	sha256_init(&hash);
	for (size_t i = 0; i < m->n; i++)
		if (m->entries[i].type == STAGE_FILE)
			sha256_update(&hash, m->entries[i].sha256, SHA256_BYTES);
	sha256_final(&hash, sum);
}

/* A file may have been replaced by one of the same size and time. Then nodes that staged it
 * before and after have different copies, and the first node's is used. */
static gradcomp_status same_everywhere(staging *s, bool mine, const unsigned char *holders, gradcomp_error *err)
{
	size_t n = (size_t)s->group->peers.nnodes, first = 0;
	unsigned char sum[SHA256_BYTES] = {0}, *all = calloc(n, sizeof sum);
	gradcomp_status st = GRADCOMP_OK;
	if (!all)
		st = error_set(err, GRADCOMP_ERR_NOMEM, "out of memory for words of %zu nodes", n);
	if (mine)
		sum_up(&s->m, sum);
	if (!(st = stage_group_agree(s->group, st, err)))
		st = stage_group_allgather(s->group, sum, all, sizeof sum, err);
	while (!st && !entry_bit(holders, first))
		first++;
	/* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): without memory no node has agreed */
	if (!st && mine && memcmp(sum, all + first * sizeof sum, sizeof sum))
		snprintf(s->stale, sizeof s->stale, "it differs from that on node %zu (%s)", first,
		         s->group->hosts[first]);
	free(all);
	return st;
}

struct comparing {
	staging *s;
	size_t mine, holders; /* this node looks at one file of so many */
	atomic_uint_fast64_t read;
};

/* *digest is that of the file as it is in the source. */
static gradcomp_status digest_source(struct comparing *c, stage_worker *w, const stage_entry *e,
                                     unsigned char digest[SHA256_BYTES], gradcomp_error *err)
{
	unsigned char block[SHA256_BYTES];
	source_stat sb;
	stage_digest d;
	gradcomp_status st = source_file(w->from, e->path, e->size < STAGE_BLOCK ? e->size : STAGE_BLOCK, &sb, err);
	if (st == GRADCOMP_ERR_NOTFOUND)
		return copy_source_changed(c->s->run, e, "was removed or replaced", err);
	if (st)
		return st;
	block_digest_begin(&d, e->size);
	for (uint64_t at = 0, i = 0; !st && i < block_digest_blocks(e->size); i++) {
		uint64_t want = e->size - at < STAGE_BLOCK ? e->size - at : STAGE_BLOCK, got = 0;
		st = source_read(w->from, w->buffer, want, at, &got, err);
		if (!st && got < want)
			st = copy_source_changed(c->s->run, e, "became shorter", err);
		sha256_digest(w->buffer, got, block);
		if (!st && block_digest_block(&d, i, block) < 0)
			st = error_set(err, GRADCOMP_ERR_NOMEM, "out of memory for checksums");
		at += got;
		atomic_fetch_add(&c->read, got);
		atomic_fetch_add(&c->s->run->bytes, got);
	}
	block_digest_end(&d, digest);
	if (!st && !(st = source_again(w->from, &sb, err)) && !copy_is_same(&sb, e))
		st = copy_source_changed(c->s->run, e, "was written to", err);
	return st;
}

static gradcomp_status compare_file(void *ctx, stage_worker *w, size_t i, gradcomp_error *err)
{
	struct comparing *c = ctx;
	const stage_entry *e = &c->s->m.entries[i];
	unsigned char digest[SHA256_BYTES];
	char name[TEXT_NAME_MAX];
	if (e->type != STAGE_FILE || i % c->holders != c->mine)
		return GRADCOMP_OK;
	gradcomp_status st = digest_source(c, w, e, digest, err);
	atomic_fetch_add(&c->s->run->files, 1);
	if (st || !memcmp(digest, e->sha256, sizeof digest))
		return st;
	return error_set(err, GRADCOMP_ERR_MISMATCH, "%s has other contents in the source",
	                 gradcomp_printable(e->path, name, sizeof name));
}

/* Each node that has a copy compares its share of the files. */
static gradcomp_status with_source(staging *s, bool mine, const unsigned char *holders, gradcomp_error *err)
{
	struct comparing c = {.s = s};
	gradcomp_status st = GRADCOMP_OK;
	gradcomp_error why;
	unsigned char stale = 0;
	bool shard = s->run->options->mode == GRADCOMP_STAGE_SHARD;
	for (int i = 0; !shard && i < s->group->peers.nnodes; i++) {
		c.mine += i < s->group->peers.node && entry_bit(holders, (size_t)i);
		c.holders += entry_bit(holders, (size_t)i);
	}
	c.holders += shard;
	if (mine && !(st = stage_open(s, err))) {
		/* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): this node is one of the holders */
		stage_run_phase(s->run, GRADCOMP_STAGE_CHECK, s->m.files, s->m.bytes / c.holders);
		st = stage_run_each(s->run, s->m.n, s->from, -1, compare_file, &c, &why);
		if (st == GRADCOMP_ERR_MISMATCH) {
			st = GRADCOMP_OK;
			stale = 1;
			memcpy(s->stale, why.text, sizeof s->stale);
		} else if (st) {
			*err = why;
		}
	}
	s->read += atomic_load(&c.read);
	if ((st = stage_group_agree(s->group, st, err)) || (!shard && (st = stage_group_or(s->group, &stale, 1, err))))
		return st;
	if (stale && mine && !*s->stale)
		snprintf(s->stale, sizeof s->stale, "another node found other contents in the source");
	return GRADCOMP_OK;
}

gradcomp_status stage_compare(staging *s, staging_state state, const unsigned char *holders, bool *stale,
                              gradcomp_error *err)
{
	bool mine = state == STAGING_HAS, shard = s->run->options->mode == GRADCOMP_STAGE_SHARD;
	gradcomp_status st = GRADCOMP_OK;
	if (s->group->nodes && !shard)
		st = same_everywhere(s, mine, holders, err);
	if (!st && s->run->options->flags & GRADCOMP_STAGE_CONTENT && !s->compared)
		st = with_source(s, mine && !*s->stale, holders, err);
	s->compared = true;
	unsigned char some = mine && *s->stale;
	if (!st)
		st = stage_group_or(s->group, &some, 1, err);
	*stale = some;
	if (*s->stale) /* its checksums say nothing about a copy to come */
		for (size_t i = 0; i < s->m.n; i++)
			s->m.entries[i].sealed = false;
	return st;
}
