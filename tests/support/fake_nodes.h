/* Nodes of a test's own: an endpoint record that names the one a rank is on. */
#ifndef TESTS_SUPPORT_FAKE_NODES_H
#define TESTS_SUPPORT_FAKE_NODES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The caller frees it. */
__attribute__((unused)) static char *endpoint_of_node(const char *text, size_t bytes, int node)
{
	static const char field[] = " node=";
	char *out = calloc(1, bytes + 16);
	const char *at = memmem(text, bytes, field, strlen(field));
	size_t before = at ? (size_t)(at - text) + strlen(field) : 0;
	memcpy(out, text, before);
	if (at)
		snprintf(out + before, 16, "n%d-", node);
	memcpy(out + strlen(out), text + before, bytes - before);
	return out;
}

#endif
