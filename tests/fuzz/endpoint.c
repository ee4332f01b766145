/* A rank's endpoint record: refused with a reason, or read within its limits. */
#include "tests/fuzz/harness.h"

#include "transport/wire/endpoint.h"
#include "base/error.h"
#include "transport/core/transport.h"

#include <stdlib.h>
#include <string.h>

static long taken, refused;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);
	gradcomp_error err = {0};
	endpoint_node node;
	endpoint c;
	if (!text)
		return 0;
	memcpy(text, data, size);
	text[size] = '\0';
	if (endpoint_read(text, &c, &node, &err)) {
		if (!err.text[0] || c.host || c.addr)
			abort();
		refused++;
		free(text);
		return 0;
	}
	if (c.naddr > ADDRESS_MAX || c.unix_bytes > ENDPOINT_UNIX_MAX || !c.host ||
	    strlen(node.host) >= sizeof node.host || strlen(node.key) >= sizeof node.key ||
	    strlen(node.cpus) >= sizeof node.cpus || node.frames < FRAMES_NONE || node.frames > FRAMES_ENCRYPT ||
	    strlen(text) >= TRANSPORT_ENDPOINT_MAX)
		abort();
	const char *lists[1] = {node.cpus}, *keys[1] = {node.key};
	int32_t number;
	if (endpoint_count_cpus(lists, 1) < 0 || endpoint_number_nodes(keys, 1, &number) != 1)
		abort();
	for (int i = 0; i < c.naddr; i++) {
		char shown[ADDRESS_TEXT];
		address again;

		address_format(&c.addr[i], shown);
		if (address_parse(shown, strlen(shown), &again))
			abort();
	}
	endpoint_clear(&c);
	taken++;
	free(text);
	return 0;
}

#ifndef LIBFUZZER
int main(void)
{
	return wire_main("endpoint", 200000, &taken, &refused);
}
#endif
