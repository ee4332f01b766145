/* Nodes of a test's own: a rank's business card that says which one it is on. */
#ifndef TESTS_SUPPORT_FAKE_NODES_H
#define TESTS_SUPPORT_FAKE_NODES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The caller frees it. */
__attribute__((unused)) static char *endpoint_of_node(const char *card, size_t bytes, int node)
{
	static const char field[] = " node=";
	char *out = calloc(1, bytes + 16);
	const char *at = memmem(card, bytes, field, strlen(field));
	size_t before = at ? (size_t)(at - card) + strlen(field) : 0;
	memcpy(out, card, before);
	if (at)
		snprintf(out + before, 16, "n%d-", node);
	memcpy(out + strlen(out), card + before, bytes - before);
	return out;
}

#endif
