/* Listings of other nodes and manifests of copies: refused in words, or taken with
 * nothing in them that leads out of the tree, and the same when sent on. */
#include "tests/fuzz/harness.h"

#include "base/text.h"
#include "io/manifest/manifest.h"

#include <stdlib.h>
#include <string.h>

static long taken, refused;

static void need(bool right)
{
	if (!right)
		abort();
}

/* Walks through it as a reader would. */
static void walk(const stage_manifest *m)
{
	need(m->n > 0 && !*m->entries[0].path && m->entries[0].type == STAGE_DIR);
	for (size_t i = 1; i < m->n; i++) {
		const stage_entry *e = &m->entries[i];
		const char *p = e->path;
		need(strcmp(m->entries[i - 1].path, p) < 0 && *p && *p != '/');
		for (size_t n; (n = strcspn(p, "/")) || *p; p += n + (p[n] == '/'))
			need(text_is_file_name(p, n));
		need(manifest_find(m, e->path, strlen(e->path)) == e);
		need(e->type == STAGE_FILE || !e->size);
		if (e->type == STAGE_HARDLINK)
			need(manifest_find(m, e->target, strlen(e->target))->type == STAGE_FILE);
		if (e->type == STAGE_SYMLINK)
			need(symlink_inside(m, e));
	}
}

static void send_on(const stage_manifest *m)
{
	static char buf[3 * STAGE_LINE_MAX];
	stage_manifest again = {0};
	size_t next = 0;
	for (ssize_t n; (n = manifest_pack(m, &next, buf, sizeof buf)) > 0;)
		need(!manifest_unpack(&again, buf, (size_t)n, NULL));
	need(!manifest_unpacked(&again, NULL) && !strcmp(m->key, again.key));
	manifest_clear(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);
	gradcomp_error err = {0};
	stage_manifest m = {0};
	if (!text)
		return 0;
	memcpy(text, data, size);
	gradcomp_status st = manifest_unpack(&m, text, size, &err);
	if (!st)
		st = manifest_unpacked(&m, &err);
	if (st) {
		need(*err.text);
		refused++;
	} else {
		walk(&m);
		send_on(&m);
		taken++;
	}
	manifest_clear(&m);
	free(text);
	return 0;
}

#ifndef LIBFUZZER
int main(void)
{
	return wire_main("manifest", 100000, &taken, &refused);
}
#endif
