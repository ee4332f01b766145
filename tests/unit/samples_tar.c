/* Tar shards as samples: which members are a sample, all ways to write names and
 * sizes, archives that are cut off or lie. */
#include "tests/support/tar_writer.h"

#include <sys/wait.h>

#define TAR GRADCOMP_SAMPLES_TAR

static void grouping(void)
{
	must(mkdir("d", 0755), "mkdir");
	tar_member("d/", '5', "", 0);
	tar_file("d/one.jpg", "1j");
	tar_file("d/one.CLS", "7");
	tar_file("d/one.seg.png", "1s");
	tar_file("d/two.jpg", "2j");
	tar_file("d/no-dot", "x");
	tar_member("d/sub", '5', "", 0);
	tar_file("d/.hidden.jpg", "x");
	tar_file("d/x.y/z.jpg", "zj");
	tar_file("d/x.y/z.cls", "cat");
	tar_file("__meta__.json", "x");
	tar_file("__meta__/a.json", "x");
	tar_file("__a/b.jpg", "ab");
	tar_file("e.", "empty");
	tar_member("tail.bin", 0, "", 0);
	tar_member("old/", 0, "", 0);
	tar_member("cont.bin", '7', "c", 1);
	tar_end("d/b.tar");
	shows("d/b.tar", 0, NULL,
	      "d/one:7[jpg=1j cls=7 seg.png=1s] d/two:-1[jpg=2j] d/x.y/z:-1[jpg=zj "
	      "cls=cat] "
	      "__meta__:-1[json=x] __a/b:-1[jpg=ab] e:-1[=empty] tail:-1[bin=] cont:-1[bin=c]",
	      "members of a sample, and those that are none");
	tar_end("d/a.tar");
	shows("d/a.tar", 0, NULL, "", "an archive without members");
	tar_file("one.jpg", "other");
	tar_end("d/c.TAR");
	gradcomp_samples *s = open_as("d", 0, NULL);
	is_int(s ? gradcomp_samples_count(s) : 0, 9, "a directory of shards, one without members");
	is_int(s ? gradcomp_samples_format(s) : 0, TAR, "... is one of shards");
	gradcomp_sample_info info = {.struct_size = sizeof info};
	is_int(gradcomp_samples_info(s, 8, &info, &why), 0, "the last");
	is_str(info.key, "one", "... of the last shard");
	ok(!gradcomp_samples_class(s, 0), "tar has no classes");
	gradcomp_samples_close(s);
	tar_file("a.jpg", "x");
	tar_file("a.cls", "1");
	tar_file("a.JPG", "y");
	tar_end("twice.tar");
	refused("twice.tar", 0, GRADCOMP_ERR_INVALID,
	        "twice.tar: the block at byte 2048 is a.JPG, which the sample has already", "a part that comes twice");
	for (int i = 0; i < 1025; i++) {
		char name[40];
		if (tar_at > sizeof tar_out - 2048)
			break;
		snprintf(name, sizeof name, "a.%d", i);
		tar_file(name, "");
	}
	tar_end("parts.tar");
	refused("parts.tar", 0, GRADCOMP_ERR_INVALID, "is part 1025 of a sample; there may be 1024", "too many parts");
}

/* Parts of a sample that stand apart: an archive of an unsorted folder. */
static void apart(void)
{
	tar_file("d/1.jpg", "a");
	tar_file("d/2.jpg", "b");
	tar_file("d/1.cls", "0");
	tar_file("d/2.cls", "1");
	tar_end("apart.tar");
	refused("apart.tar", 0, GRADCOMP_ERR_INVALID,
	        "apart.tar: the block at byte 2048 is d/1.cls, and other parts of the sample d/1 stand before it, apart: each "
	        "would be a sample of its own; make the archive anew with tar --sort=name",
	        "parts that stand apart");
	tar_file("1.jpg", "a");
	memset(tar_out + tar_at, 0, 1024);
	tar_at += 1024;
	tar_file("1.jpg", "b");
	tar_end("behind.tar");
	shows("behind.tar", 0, NULL, "1:-1[jpg=a] 1:-1[jpg=b]", "a key of one archive in the next one of the file");
}

/* Files that are called shards and are something else. */
static void others(void)
{
	static const struct {
		const char *data, *words;
		size_t n;
	} cases[] = {
		{"", "is empty, 0 bytes", 0},
		{"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
	         "is a Git LFS pointer, not what it points to: run git lfs pull", 0},
		{"\xef\xbb\xbf\n<!DOCTYPE html><html>", "is a web page (HTML): fetch", 0},
		{"  <HTML>", "is a web page (HTML): fetch", 0},
		{"<?xml version=\"1.0\"?><Error/>", "is an XML text", 0},
		{"{\"error\":", "is a JSON text", 0},
		{"PK\3\4....", "is a zip archive: unpack it", 0},
		{"PAR1", "is a Parquet table", 0},
		{"\x89HDF\r\n\x1a\n", "is an HDF5 file", 0},
		{"\x1f\x8b", "is compressed (gzip): unpack the shard", 0},
		{"\xfd"
	         "7zXZ\0",
	         "is compressed (xz)", 6},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		for (int big = 0; big < 2; big++) {
			static unsigned char data[4096];
			size_t n = cases[i].n ? cases[i].n : strlen(cases[i].data);
			memset(data, ' ', sizeof data);
			memcpy(data, cases[i].data, n);
			put_bytes("o.tar", data, big && n ? sizeof data : n);
			gradcomp_samples *s = open_as("o.tar", 0, NULL);
			gradcomp_samples_close(s);
			ok(!s && strstr(why.text, cases[i].words), "%s", why.text);
		}
	tar_file("a.jpg", cases[1].data);
	tar_end("pointer.tar");
	gradcomp_samples *s = open_as("pointer.tar", 0, NULL);
	char buf[200];
	uint64_t n;
	is_int(s ? gradcomp_samples_read(s, 0, 0, buf, sizeof buf, &n, &why) : 0, GRADCOMP_ERR_INVALID,
	       "a pointer of Git LFS as a part");
	like(why.text, "git lfs pull", "... is called that");
	gradcomp_samples_close(s);
	tar_file("{\"", "x");
	tar_file("BZh.jpg", "x");
	memset(tar_out + 257, 0, 8);
	tar_sum(0);
	tar_end("brace.tar");
	shows("brace.tar", 0, NULL, "BZh:-1[jpg=x]", "a member of the old form with such a name is one");
}

static void labels(void)
{
	static const struct {
		const char *text;
		int32_t label;
	} cases[] = {{"0", 0},           {"2147483647", 2147483647},
	             {"2147483648", -1}, {"", -1},
	             {"\n", -1},         {"-1", -1},
	             {"3 ", 3},          {"0x1", -1},
	             {"007", 7},         {"99999999999999999", -1}};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		gradcomp_sample_info info = {.struct_size = sizeof info};
		tar_file("a.cls", cases[i].text);
		tar_end("label.tar");
		gradcomp_samples *s = open_as("label.tar", 0, NULL);
		is_int(s && !gradcomp_samples_info(s, 0, &info, &why) ? info.label : -2, cases[i].label, "label %zu",
		       i);
		gradcomp_samples_close(s);
	}
}

static void names(void)
{
	char pax[6000] = "", want[6000], big[5000];
	size_t at;
	memset(big, 'n', 4090);
	strcpy(big + 4090, ".jpg");
	pax_add(pax, sizeof pax, "comment", "nothing");
	pax_add(pax, sizeof pax, "path", big);
	tar_member("PaxHeaders/x", 'x', pax, strlen(pax));
	tar_file("short.jpg", "pax");
	tar_file("next.jpg", "its own");
	snprintf(want, sizeof want, "%.4090s:-1[jpg=pax] next:-1[jpg=its own]", big);
	tar_end("pax.tar");
	shows("pax.tar", 0, NULL, want, "a pax name of 4,094 bytes, for one member");
	tar_member("././@LongLink", 'L', big, strlen(big) + 1);
	tar_file("short.jpg", "gnu");
	tar_file("next.jpg", "its own");
	snprintf(want, sizeof want, "%.4090s:-1[jpg=gnu] next:-1[jpg=its own]", big);
	tar_end("gnu.tar");
	shows("gnu.tar", 0, NULL, want, "a GNU name of as many");
	tar_member("././@LongLink", 'K', big, strlen(big) + 1);
	tar_member("link", '2', "", 0);
	tar_file("a.jpg", "a");
	tar_end("k.tar");
	shows("k.tar", 0, NULL, "a:-1[jpg=a]", "a link without a dot is passed over, long as it is");
	at = tar_file("name.jpg", "x");
	memcpy(tar_out + at + 345, "pre/fix", 7);
	tar_sum(at);
	at = tar_file("gnu.jpg", "y");
	memcpy(tar_out + at + 257, "ustar  ", 8);
	memcpy(tar_out + at + 345, "time", 4);
	tar_sum(at);
	tar_end("prefix.tar");
	shows("prefix.tar", 0, NULL, "pre/fix/name:-1[jpg=x] gnu:-1[jpg=y]", "the prefix of ustar, which GNU has not");
	at = tar_file("x", "full");
	memset(tar_out + at, 'f', 96);
	memcpy(tar_out + at + 96, ".jpg", 4);
	tar_sum(at);
	memset(big, 'f', 96);
	snprintf(want, sizeof want, "%.96s:-1[jpg=full]", big);
	tar_end("full.tar");
	shows("full.tar", 0, NULL, want, "a name of 100 bytes without an end");
	tar_member("g", 'g', "16 comment=hello\n", 17);
	tar_file("\xff\n.jpg", "odd");
	tar_end("odd.tar");
	refused("odd.tar", 0, GRADCOMP_ERR_INVALID, "at byte 0 has a pax record whose length is wrong",
	        "a pax length that is wrong");
	tar_member("g", 'g', "17 comment=hello\n", 17);
	tar_file("\xff\n.jpg", "odd");
	tar_end("odd.tar");
	shows("odd.tar", 0, NULL, "\xff\n:-1[jpg=odd]", "any bytes in a name");
}

static void sizes(void)
{
	char pax[100] = "";
	size_t at = tar_file("a.jpg", "base256");
	memset(tar_out + at + 124, 0, 12);
	tar_out[at + 124] = 0x80;
	tar_out[at + 135] = 7;
	tar_sum(at);
	pax_add(pax, sizeof pax, "size", "3");
	tar_member("x", 'x', pax, strlen(pax));
	at = tar_file("b.jpg", "pax");
	memset(tar_out + at + 124, '7', 11);
	tar_sum(at);
	at = tar_file("c.jpg", "spaces");
	memcpy(tar_out + at + 124, "          6 ", 12);
	tar_sum(at);
	tar_end("sizes.tar");
	shows("sizes.tar", 0, NULL, "a:-1[jpg=base256] b:-1[jpg=pax] c:-1[jpg=spaces]",
	      "sizes in base 256, of pax, with spaces");
	static const unsigned char wrong[][12] = {{0x80, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 1},
	                                          {0xff, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255},
	                                          "0000000000x",
	                                          "-0000000001",
	                                          {0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
	                                          {0x81, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		tar_file("a.jpg", "first");
		at = tar_file("b.jpg", "x");
		memcpy(tar_out + at + 124, wrong[i], 12);
		tar_sum(at);
		tar_end("wrong.tar");
		refused("wrong.tar", 0, GRADCOMP_ERR_INVALID,
		        "the block at byte 1024 has a size that is no number, negative or too large",
		        "a size that cannot be");
	}
	static const char *const lies[] = {"99999999999999999999", "9223372036854775807", "-1", "1x", " 1"};
	for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
		*pax = 0;
		pax_add(pax, sizeof pax, "size", lies[i]);
		tar_member("x", 'x', pax, strlen(pax));
		tar_file("b.jpg", "x");
		tar_end("wrong.tar");
		refused("wrong.tar", 0, GRADCOMP_ERR_INVALID,
		        i == 1 ? "the archive was cut off" : "has a pax size that is no number",
		        "a pax size that cannot be");
	}
}

static void refusals(void)
{
	char pax[200] = "";
	tar_file("a.jpg", "a");
	tar_member("s.jpg", 'S', "x", 1);
	tar_end("x.tar");
	refused("x.tar", 0, GRADCOMP_ERR_UNSUPPORTED, "byte 1024 is s.jpg, a sparse member", "GNU sparse");
	pax_add(pax, sizeof pax, "GNU.sparse.major", "1");
	pax_add(pax, sizeof pax, "path", "GNUSparseFile.0/s.jpg");
	tar_member("x", 'x', pax, strlen(pax));
	tar_file("b.jpg", "x");
	tar_end("x.tar");
	refused("x.tar", 0, GRADCOMP_ERR_UNSUPPORTED, "a sparse member", "pax sparse");
	for (int i = 0; i < 2; i++) {
		tar_member("h.jpg", i ? '2' : '1', "", 0);
		tar_end("x.tar");
		refused("x.tar", 0, GRADCOMP_ERR_UNSUPPORTED,
		        i ? "h.jpg, a symbolic link: a part" : "h.jpg, a hard link: a part",
		        "a link that would be a part");
	}
	tar_member("h", '1', "", 0);
	tar_member("null", '3', "", 0);
	tar_member("fifo.jpg", '6', "", 0);
	tar_member("?", 'Z', "data", 4);
	tar_file("a.jpg", "a");
	tar_end("x.tar");
	shows("x.tar", 0, NULL, "a:-1[jpg=a]", "other links, devices and unknown types are passed over");
	tar_member("x", 'x', "11 path=a\0b\n", 12);
	tar_file("b.jpg", "x");
	tar_end("x.tar");
	refused("x.tar", 0, GRADCOMP_ERR_INVALID, "pax record", "a pax record that ends too early");
	tar_member("x", 'x', "12 path=a\0b\n", 12);
	tar_file("b.jpg", "x");
	tar_end("x.tar");
	refused("x.tar", 0, GRADCOMP_ERR_INVALID, "a name with a zero byte in it", "a zero byte in a name");
	tar_member("x", 'g', "10 path=a\n", 10);
	tar_file("b.jpg", "x");
	tar_end("x.tar");
	refused("x.tar", 0, GRADCOMP_ERR_INVALID, "gives all members one name", "a name for all");
	tar_member("x", 'x', "10 path=a\n", 10);
	tar_end("x.tar");
	refused("x.tar", 0, GRADCOMP_ERR_INVALID, "byte 1024 is the end of the archive, where a member was announced",
	        "a pax header before nothing");
	static const char *const magics[] = {"\x1f\x8b\x08\x00", "BZh9", "\3757zXZ", "\x28\xb5\x2f\xfd"};
	static const char *const names[] = {"gzip", "bzip2", "xz", "zstd"};
	for (int i = 0; i < 4; i++) {
		put_bytes("c.tar.gz", magics[i], 6 - (i != 2));
		refused("c.tar.gz", 0, GRADCOMP_ERR_UNSUPPORTED, names[i], "a compressed shard");
	}
	must(mkdir("gz", 0755), "mkdir");
	must(rename("c.tar.gz", "gz/c.tar.gz"), "rename");
	refused("gz", 0, GRADCOMP_ERR_UNSUPPORTED, "gz holds c.tar.gz: compressed shards cannot be read",
	        "a directory of them");
	must(rename("x.tar", "gz/x.tar"), "rename");
	refused("gz", 0, GRADCOMP_ERR_UNSUPPORTED, "gz holds c.tar.gz: compressed shards cannot be read",
	        "some of them");
}

static void cut(void)
{
	static unsigned char whole[8192];
	tar_file("a.jpg", "aaaa");
	tar_file("b.jpg", "bbbb");
	memset(tar_out + tar_at, 0, 1024);
	size_t n = tar_at + 1024;
	int bad = 0;
	memcpy(whole, tar_out, n);
	for (size_t i = 0; i < n; i++) {
		put_bytes("cut.tar", whole, i);
		gradcomp_samples *s = open_as("cut.tar", TAR, NULL);
		/* One block of zeros is an end. */
		if ((s != NULL) != (i >= n - 512) || (!s && !strstr(why.text, "cut off")))
			bad++, printf("# %zu bytes: %s\n", i, s ? "taken" : why.text);
		gradcomp_samples_close(s);
	}
	is_int(bad, 0, "cut off at any byte it is refused");
	tar_at = 0;
	tar_file("c.jpg", "c");
	memmove(tar_out + n + 9728, tar_out, tar_at);
	memcpy(tar_out, whole, n);
	memset(tar_out + n, 0, 9728);
	tar_at += n + 9728;
	tar_end("joined.tar");
	shows("joined.tar", 0, NULL, "a:-1[jpg=aaaa] b:-1[jpg=bbbb] c:-1[jpg=c]", "archives one behind another");
	bad = 0;
	for (size_t i = 0; i < n - 1024; i++) {
		if (i % 1024 >= 512 || (whole[i] ^ 1) == 0)
			continue;
		whole[i] ^= 1;
		put_bytes("cut.tar", whole, n);
		whole[i] ^= 1;
		gradcomp_samples *s = open_as("cut.tar", TAR, NULL);
		bad += s != NULL;
		gradcomp_samples_close(s);
	}
	is_int(bad, 0, "a header with a bit turned is refused");
	put_bytes("hole.tar", whole, n);
	must(truncate("hole.tar", (off_t)1 << 40), "truncate");
	shows("hole.tar", 0, NULL, "a:-1[jpg=aaaa] b:-1[jpg=bbbb]", "a hole of a terabyte behind it is passed over");
}

/* A member of 9 GiB, which octal digits cannot say, is passed over by its header. */
static void large(void)
{
	const uint64_t size = (uint64_t)9 << 30;
	size_t at = tar_file("big.bin", "");
	memset(tar_out + at + 124, 0, 12);
	tar_out[at + 124] = 0x80;
	for (int i = 0; i < 8; i++)
		tar_out[at + 135 - i] = (unsigned char)(size >> 8 * i);
	tar_sum(at);
	put_bytes("large.tar", tar_out, 512);
	tar_at = 0;
	tar_file("small.txt", "small");
	int fd = open("large.tar", O_WRONLY);
	must(fd < 0 || pwrite(fd, tar_out, tar_at, (off_t)(512 + size)) < 0 || close(fd) ? -1 : 0, "large.tar");
	must(truncate("large.tar", (off_t)(512 + size + tar_at + 1024)), "truncate");
	tar_at = 0;
	shows("large.tar", 0, NULL, "big:-1[bin=...] small:-1[txt=small]", "a member of 9 GiB");
}

static void changes(void)
{
	uint64_t n;
	char buf[20];
	tar_file("a.jpg", "aaaa");
	tar_end("d/b.tar");
	gradcomp_samples *file = open_as("d/b.tar", 0, NULL), *s;
	must(truncate("d/b.tar", 5), "truncate");
	is_int(gradcomp_samples_read(file, 0, 0, buf, 20, &n, &why), GRADCOMP_ERR_STATE, "a shard that became shorter");
	like(why.text, "d/b.tar became shorter than byte 516", "... is named");
	gradcomp_samples_close(file);
	/* More shards than descriptors may stay open. */
	must(mkdir("many", 0755), "mkdir");
	for (int i = 0; i < 100; i++) {
		char name[40];
		snprintf(name, sizeof name, "%03d.txt", i);
		tar_file(name, name);
		snprintf(name, sizeof name, "many/%03d.tar", i);
		tar_end(name);
	}
	pid_t child = fork();
	if (!child) {
		int bad = 0;
		few_files(40);
		s = open_as("many", 0, NULL);
		for (int round = 0; s && round < 3; round++)
			for (uint64_t i = 0; i < 100; i++) {
				memset(buf, 0, sizeof buf);
				bad |= gradcomp_samples_read(s, i, 0, buf, 20, &n, NULL) != 0 ||
				       (uint64_t)atoi(buf) != i;
			}
		tar_file("new.txt", "new");
		tar_end("many/099.tar");
		bad |= s && gradcomp_samples_read(s, 99, 0, buf, 20, &n, &why) != GRADCOMP_ERR_STATE;
		bad |= !strstr(why.text, "099.tar was changed after it was opened");
		bad |= !s;
		gradcomp_samples_close(s);
		_exit(bad);
	}
	int state;
	ok(waitpid(child, &state, 0) == child && state == 0,
	   "100 shards with 40 descriptors; one that changed is noticed");
}

int main(void)
{
	begin("samples-tar");
	grouping();
	apart();
	others();
	labels();
	names();
	sizes();
	refusals();
	cut();
	large();
	changes();
	return done_testing();
}
