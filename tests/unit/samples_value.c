/* A sample as a value of a data set: what it says, and that a damaged one leads nowhere. */
#include "gradcomp/dataset.h"
#include "tests/support/tar_writer.h"

static unsigned char value[4096];
static uint64_t value_bytes;

static void *alloc(gradcomp_value_buffer *out, uint64_t bytes)
{
	(void)out;
	value_bytes = bytes;
	memset(value, 0xaa, sizeof value);
	return bytes <= sizeof value ? value : NULL;
}

static void values(void)
{
	gradcomp_samples *s = open_as("a.tar", 0, NULL);
	gradcomp_value_buffer out = {.struct_size = sizeof out, .alloc = alloc};
	gradcomp_sample_info info = {.struct_size = sizeof info};
	const char *name;
	const void *data;
	uint64_t n;
	is_int(gradcomp_samples_load(s, 0, &out, &why), 0, "a sample as a value");
	is_int(gradcomp_value_sample(value, value_bytes, &info, &why), 0, "which says");
	ok(info.nparts == 3 && info.label == 1 && info.bytes == 22 && !strcmp(info.key, "dir/\xff\n0001"),
	   "what it is");
	is_int(gradcomp_value_part(value, value_bytes, 2, &name, &data, &n, &why), 0, "its last part");
	ok(!strcmp(name, "json") && n == 8 && !memcmp(data, "{\"a\": 1}", 8) &&
	           ((const unsigned char *)data - value) % 64 == 0,
	   "is where it should be");
	is_int(gradcomp_value_part(value, value_bytes, 3, NULL, NULL, NULL, &why), GRADCOMP_ERR_RANGE, "no part 3");
	is_int(gradcomp_value_part(value, 100, 0, NULL, NULL, NULL, &why), GRADCOMP_ERR_INVALID,
	       "a value that was cut off");
	int crossed = 0;
	for (uint64_t i = 0; i < value_bytes; i++) {
		value[i] ^= 0xff;
		if (!gradcomp_value_sample(value, value_bytes, &info, NULL))
			crossed += (const unsigned char *)info.key + strlen(info.key) >= value + value_bytes;
		for (uint32_t p = 0; p < 4; p++)
			if (!gradcomp_value_part(value, value_bytes, p, &name, &data, &n, NULL))
				crossed += (const unsigned char *)data + n > value + value_bytes ||
				           (const unsigned char *)name + strlen(name) >= value + value_bytes;
		value[i] ^= 0xff;
	}
	is_int(crossed, 0, "a damaged one leads nowhere else");
	is_int(gradcomp_samples_load(s, 3, &out, &why), GRADCOMP_ERR_RANGE, "no sample 3");
	out.alloc = NULL;
	gradcomp_samples_close(s);
}

int main(void)
{
	begin("samples-value");
	tar_file("dir/\xff\n0001.jpg", "not a picture");
	tar_file("dir/\xff\n0001.cls", "1");
	tar_file("dir/\xff\n0001.json", "{\"a\": 1}");
	tar_file("none.", "");
	tar_file("last.cls", "0");
	tar_end("a.tar");
	values();
	return done_testing();
}
