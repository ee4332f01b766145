/* Untrusted tar shards, as they are and with the sums of their headers made
 * right, so that what is behind those is reached. */
#include "tests/fuzz/samples_harness.h"
#include "tests/fuzz/harness.h"

#include <stdio.h>

static void make_sums(uint8_t *data, size_t size)
{
	for (; size >= 512; data += 512, size -= 512) {
		unsigned sum = 0;
		if (memcmp(data + 257, "ustar", 5))
			continue;
		memset(data + 148, ' ', 8);
		for (int i = 0; i < 512; i++)
			sum += data[i];
		snprintf((char *)data + 148, 8, "%06o", sum & 0777777);
	}
}

static void open_shard(const uint8_t *data, size_t size)
{
	gradcomp_samples *s = NULL;
	gradcomp_error err = {0};
	gradcomp_status st = tar_open(as_file(data, size), strdup("shard"), false, 1, &s, &err);
	read_all(s, st, &err, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *copy = malloc(size + 1);
	open_shard(data, size);
	memcpy(copy, data, size);
	make_sums(copy, size);
	open_shard(copy, size);
	free(copy);
	return 0;
}

#ifndef LIBFUZZER
int main(void)
{
	return wire_main("tar", 20000, &taken, &refused);
}
#endif
