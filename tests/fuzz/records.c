/* Record files from strangers, as they are and with the checksums of the index and the
 * end made right, so that what is behind those is reached. */
#include "base/checksum.h"
#include "io/format/records_format.h"
#include "tests/fuzz/samples_harness.h"
#include "tests/fuzz/harness.h"

static void open_file(const uint8_t *data, size_t size)
{
	gradcomp_samples *s = NULL;
	gradcomp_error err = {0};
	gradcomp_status status = records_open(as_file(data, size), strdup("records"), &s, &err);
	read_all(s, status, &err, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *copy = malloc(size + 1), *foot;
	open_file(data, size);
	memcpy(copy, data, size);
	if (size >= RECORDS_HEAD + RECORDS_FOOT) {
		foot = copy + size - RECORDS_FOOT;
		uint64_t at = get64(foot), n = get64(foot + 8);
		if (at <= size && n <= size - at)
			put64(foot + 40, checksum_of(copy + at, n, 0));
		put64(foot + 48, checksum_of(foot, 48, 0));
		open_file(copy, size);
	}
	free(copy);
	return 0;
}

#ifndef LIBFUZZER
int main(void)
{
	return wire_main("records", 20000, &taken, &refused);
}
#endif
