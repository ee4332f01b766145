/* Where a symbolic link leads, by the manifest alone: as the kernel would walk,
 * other links on the way included. */
#include <stdlib.h>
#include <string.h>

#include "io/manifest/manifest.h"

#define HOPS 40 /* the kernel's limit */

struct trail {
	char *at; /* directory reached so far, "" the root */
	size_t length;
	int hops;
};

static bool follow(const stage_manifest *m, struct trail *t, const char *target);

/* Goes one component on. False: out of the tree. */
static bool step(const stage_manifest *m, struct trail *t, const char *name, size_t n)
{
	if (n == 0 || (n == 1 && name[0] == '.'))
		return true;
	if (n == 2 && name[0] == '.' && name[1] == '.') {
		if (!t->length)
			return false;
		char *slash = strrchr(t->at, '/');
		t->length = slash ? (size_t)(slash - t->at) : 0;
		t->at[t->length] = 0;
		return true;
	}
	size_t was = t->length, more = (was ? 1 : 0) + n;
	char *p = realloc(t->at, was + more + 1);
	if (!p)
		return false;
	t->at = p;
	if (was)
		t->at[was] = '/';
	memcpy(t->at + was + (was ? 1 : 0), name, n);
	t->length = was + more;
	t->at[t->length] = 0;
	/* Something that is not there is a name like any other: the link dangles
	 * now, and stays inside whatever is put there later. */
	const stage_entry *e = manifest_find(m, t->at, t->length);
	if (!e || e->type != STAGE_SYMLINK)
		return true;
	t->length = was;
	t->at[was] = 0;
	/* A loop leads nowhere, so not outside either. */
	return t->hops++ >= HOPS || follow(m, t, e->target);
}

static bool follow(const stage_manifest *m, struct trail *t, const char *target)
{
	if (target[0] == '/')
		return false;
	for (const char *s = target; *s && t->hops <= HOPS;) {
		size_t n = strcspn(s, "/");
		if (!step(m, t, s, n))
			return false;
		s += n + (s[n] == '/');
	}
	return true;
}

bool symlink_inside(const stage_manifest *m, const stage_entry *e)
{
	const char *slash = strrchr(e->path, '/');
	struct trail t = {.length = slash ? (size_t)(slash - e->path) : 0};
	if (!(t.at = strndup(e->path, t.length)))
		return false;
	bool inside = follow(m, &t, e->target);
	free(t.at);
	return inside;
}

const stage_entry *symlink_outside(const stage_manifest *m)
{
	for (size_t i = 0; i < m->n; i++)
		if (m->entries[i].type == STAGE_SYMLINK && !symlink_inside(m, &m->entries[i]))
			return &m->entries[i];
	return NULL;
}
