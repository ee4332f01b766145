/* Goes on until every node has a copy: finds out which nodes have one, which make one, and which
 * wait for another job that does. No process waits for one lock while it holds another, so jobs
 * that share some of their nodes cannot deadlock. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/cache/cache.h"
#include "io/stage/stage_internal.h"

/* 1: there is a copy; 0: there is none; or a status. */
static int look(staging *s, char damage[508], gradcomp_error *err)
{
	bool deep = s->run->options->flags & GRADCOMP_STAGE_VERIFY && !s->verified;
	if (*s->stale) {
		memcpy(damage, s->stale, sizeof s->stale);
		return 0;
	}
	return cache_published(s->run, &s->m, s->area, s->key, deep, damage, err);
}

/* Leaves a shared copy with something wrong to its owner, who mends it; until then this user has his own. */
static gradcomp_status leave_shared(staging *s, const char *damage, gradcomp_error *err)
{
	const gradcomp_stage_options *o = s->run->options;
	int own = -1;
	gradcomp_status st = cache_open_area(s->run, true, &own, err);
	if (!st && (st = cache_lease(own, s->key, o->hold_pid, o->holder, err)))
		close(own);
	if (st)
		return st;
	stage_run_notice(s->run, "the shared copy is not used: %s", *damage ? damage : "it is gone");
	close(s->area);
	s->area = own;
	s->shared = s->verified = false;
	s->stale[0] = 0;
	return GRADCOMP_OK;
}

static gradcomp_status look_or_lock(staging *s, staging_state *state, int *lock, gradcomp_error *err)
{
	char damage[508];
	*state = STAGING_LACKS;
	for (int again = 0; again < 2; again++) {
		int found = look(s, damage, err);
		if (found < 0)
			return (gradcomp_status)found;
		if (found) {
			*state = STAGING_HAS;
			s->verified = true;
			if (*lock >= 0)
				cache_lock_release(s->area, s->key, *lock);
			*lock = -1;
			return GRADCOMP_OK;
		}
		if (s->shared) {
			gradcomp_status st = leave_shared(s, damage, err);
			if (st)
				return st;
			again = -1;
			continue;
		}
		if (again)
			break;
		/* Another process may have published it before the lock was taken. */
		int got = cache_lock_try(s->area, s->key, lock, &s->run->pid);
		if (got < 0)
			return cache_write_failed(s->run, "the lock", err);
		if (!got)
			return GRADCOMP_OK;
	}
	*state = STAGING_LOCKED;
	if (*damage)
		stage_run_notice(s->run, "the cached copy is damaged (%s): copying again", damage);
	return GRADCOMP_OK;
}

/* A holder that dies is noticed within half a second. */
static gradcomp_status wait_turn(staging *s, int *watch, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	if (*watch < -1) {
		stage_run_phase(s->run, GRADCOMP_STAGE_WAIT, 0, 0);
		*watch = cache_lock_watch(s->area);
		return stage_run_tick(s->run, err);
	}
	for (int i = 0; i < 5 && !(st = stage_run_tick(s->run, err)); i++)
		if (cache_lock_sleep(*watch, 100))
			break;
	return st;
}

struct tally {
	unsigned char *all, *holders; /* a state and bits by node */
	int has, locked, lacks;
	bool ours; /* the first of the nodes that have nothing is locked by this group */
};

static gradcomp_status count(staging *s, staging_state state, struct tally *t, gradcomp_error *err)
{
	int n = s->group->peers.nnodes;
	unsigned char mine = (unsigned char)state;
	gradcomp_status st = stage_group_allgather(s->group, &mine, t->all, 1, err);
	/* NOLINTNEXTLINE(clang-analyzer-core*): without memory no node has agreed to begin */
	memset(t->holders, 0, (size_t)n / 8 + 1);
	t->has = t->locked = t->lacks = 0;
	for (int i = 0; !st && i < n; i++) {
		/* NOLINTNEXTLINE(clang-analyzer-core*): the same */
		if (t->all[i] == STAGING_HAS)
			entry_bit_set(t->holders, (size_t)i);
		else if (!t->locked && !t->lacks)
			t->ours = t->all[i] == STAGING_LOCKED;
		t->has += t->all[i] == STAGING_HAS;
		t->locked += t->all[i] == STAGING_LOCKED;
		t->lacks += t->all[i] == STAGING_LACKS;
	}
	return st;
}

/* One turn; *done when every node has a copy. */
static gradcomp_status turn(staging *s, struct tally *t, int *lock, int *watch, bool *done, gradcomp_error *err)
{
	bool stale = false;
	staging_state state;
	gradcomp_status st = look_or_lock(s, &state, lock, err);
	if ((st = stage_group_agree(s->group, st, err)) || (st = count(s, state, t, err)))
		return st;
	if (t->has && (st = stage_compare(s, state, t->holders, &stale, err)))
		return st;
	*done = !stale && !t->locked && !t->lacks;
	if (*done)
		return GRADCOMP_OK;
	/* One of two jobs that want the same nodes continues. */
	if (!stale && t->locked && t->ours) {
		s->cached = false;
		st = stage_populate(s, state, t->holders, err);
		*done = !t->lacks;
	} else if (!stale && state == STAGING_LACKS) {
		st = wait_turn(s, watch, err);
	}
	if (*lock >= 0)
		cache_lock_release(s->area, s->key, *lock);
	*lock = -1;
	return stage_group_agree(s->group, st, err);
}

gradcomp_status stage_complete(staging *s, gradcomp_error *err)
{
	const gradcomp_stage_options *o = s->run->options;
	int n = s->group->peers.nnodes, lock = -1, watch = -2;
	struct tally t = {.all = malloc((size_t)n), .holders = malloc((size_t)n / 8 + 1)};
	bool done = false;
	s->shared = s->verified = cache_use_shared(s->run, &s->m, s->source, s->key, &s->area);
	gradcomp_status st = s->shared ? GRADCOMP_OK : cache_lease(s->area, s->key, o->hold_pid, o->holder, err);
	if (!t.all || !t.holders)
		st = error_set(err, GRADCOMP_ERR_NOMEM, "out of memory for words of %d nodes", n);
	st = stage_group_agree(s->group, st, err);
	s->cached = true;
	while (!st && !done)
		st = turn(s, &t, &lock, &watch, &done, err);
	if (!st)
		cache_touch(s->area, s->key);
	if (lock >= 0)
		cache_lock_release(s->area, s->key, lock);
	if (watch >= 0)
		close(watch);
	free(t.all);
	free(t.holders);
	return st;
}

/* Leaves node i of n the files at i, i + n, ... of the sorted list, for mode shard, and all directories and
 * symbolic links, of which some then lead nowhere. */

static bool is_file(const stage_entry *e)
{
	return e->type == STAGE_FILE || e->type == STAGE_HARDLINK;
}

/* A name of a file whose first name is another node's is the file here, and further
 * names of it become links to this one. The first name's entry remembers that: it is
 * not needed any more. */
static void keep_name(stage_manifest *m, const unsigned char *kept, stage_entry *e)
{
	stage_entry *first = (stage_entry *)manifest_find(m, e->target, strlen(e->target));
	if (!first || entry_bit(kept, (size_t)(first - m->entries)))
		return;
	if (first->target) {
		e->target = first->target;
		return;
	}
	first->target = e->path;
	e->type = STAGE_FILE;
	e->target = NULL;
	e->size = first->size;
	e->stored = first->stored;
	e->mtime_ns = first->mtime_ns;
}

gradcomp_status stage_shard(stage_manifest *m, int i, int n, gradcomp_error *err)
{
	unsigned char *kept = calloc(1, m->n / 8 + 1);
	char *source = NULL;
	size_t files = 0, left = 0;
	if (!kept || asprintf(&source, "shard %d/%d of %s", i, n, m->source) < 0) {
		free(kept);
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory with a list of %zu files", m->n);
	}
	for (size_t k = 0; k < m->n; k++)
		if (!is_file(&m->entries[k]) || files++ % (size_t)n == (size_t)i)
			entry_bit_set(kept, k);
	for (size_t k = 0; k < m->n; k++)
		if (m->entries[k].type == STAGE_HARDLINK && entry_bit(kept, k))
			keep_name(m, kept, &m->entries[k]);
	for (size_t k = 0; k < m->n; k++)
		if (entry_bit(kept, k))
			m->entries[left++] = m->entries[k];
	m->n = left;
	free(kept);
	free(m->source);
	m->source = source;
	m->ninodes = 0; /* their links are found already */
	return manifest_finish(m, err);
}
