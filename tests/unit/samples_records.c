/* Record files: what is written is read, the golden file for ever; damage, other
 * versions and lies are named; a file appears whole or not at all. */
#include "base/checksum.h"
#include "gradcomp/dataset.h"
#include "io/format/records_format.h"
#include "tests/support/samples_fixture.h"

#include <dirent.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>

#define RECORDS GRADCOMP_SAMPLES_RECORDS

static unsigned char file[1 << 16];
static size_t file_bytes;

static gradcomp_status add(gradcomp_records_writer *w, const char *key, int32_t label, uint32_t n,
                           const char *const *names, const char *const *texts)
{
	const void *data[8];
	uint64_t bytes[8];
	for (uint32_t i = 0; i < n; i++) {
		data[i] = texts[i];
		bytes[i] = strlen(texts[i]);
	}
	return gradcomp_records_add(w, key, label, n, names, data, bytes, &why);
}

static void load(const char *path)
{
	int fd = open(path, O_RDONLY);
	ssize_t n = read(fd, file, sizeof file);
	must(fd < 0 || n < 0 ? -1 : 0, path);
	file_bytes = (size_t)n;
	close(fd);
}

static int entries(void)
{
	DIR *d = opendir(".");
	int n = 0;
	while (readdir(d))
		n++;
	closedir(d);
	return n - 2;
}

/* The same file as tests/golden/records-1.gcr. */
static void write_small(const char *path)
{
	static const char *const names[] = {"jpg", "cls", "json"}, *const texts[] = {"not a picture", "1",
	                                                                             "{\"a\": 1}"};
	static const char *const classes[] = {"cat", "dog"}, *const empty[] = {""};
	gradcomp_records_writer *w;
	must(gradcomp_records_create(path, &w, &why), why.text);
	is_int(add(w, "dir/\xff\n0001", 1, 3, names, texts), 0, "a record of three parts");
	is_int(add(w, "none", -1, 1, NULL, empty), 0, "one without a label, a name and bytes");
	is_int(gradcomp_records_classes(w, 2, classes, &why), 0, "classes");
	is_int(add(w, "", 0, 2, names + 1, texts + 1), 0, "one without a key");
	is_int(gradcomp_records_finish(w, &why), 0, "finished");
}

static const char small[] =
	"dir/\xff\n0001:1[jpg=not a picture cls=1 json={\"a\": 1}] none:-1[=] :0[cls=1 json={\"a\": 1}]";

static void writing(void)
{
	struct stat st;
	gradcomp_records_writer *w;
	umask(027);
	write_small("a.gcr");
	shows("a.gcr", 0, NULL, small, "it reads back");
	ok(stat("a.gcr", &st) == 0 && (st.st_mode & 0777) == 0640, "with the modes that the umask leaves");
	is_int(entries(), 1, "and nothing beside it");
	must(gradcomp_records_create("empty.gcr", &w, &why), why.text);
	is_int(gradcomp_records_finish(w, &why), 0, "no records");
	shows("empty.gcr", 0, NULL, "", "... are a file too");
	refused(".", 0, GRADCOMP_ERR_INVALID, ".gcr: give the path of the record file",
	        "a directory with record files");
	gradcomp_samples *s = open_as("a.gcr", RECORDS, NULL);
	is_int(gradcomp_samples_format(s), RECORDS, "it is a record file");
	is_str(gradcomp_samples_class(s, 1), "dog", "with classes");
	ok(!gradcomp_samples_class(s, 2), "... of which there are two");
	gradcomp_samples_close(s);
	load("a.gcr");
}

static void refusals(void)
{
	static const char *const text[] = {"x"}, *const none[] = {NULL}, *const cat[] = {"cat"};
	gradcomp_records_writer *w;
	is_int(gradcomp_records_create("no/a.gcr", &w, &why), GRADCOMP_ERR_IO, "no such directory");
	like(why.text, "cannot create no/a.gcr", "... is named");
	is_int(gradcomp_records_create("/dev/null", &w, &why), GRADCOMP_ERR_INVALID, "a device");
	ok(!w, "no writer");
	must(gradcomp_records_create("b.gcr", &w, &why), why.text);
	is_int(entries(), 3, "a file that is not finished has another name");
	is_int(add(w, "k", -2, 1, NULL, text), GRADCOMP_ERR_INVALID, "label -2");
	is_int(add(w, "k", 0, 0, NULL, text), GRADCOMP_ERR_INVALID, "no parts");
	is_int(add(w, NULL, 0, 1, NULL, text), GRADCOMP_ERR_INVALID, "no key");
	is_int(add(w, "k", 0, 1, none, text), GRADCOMP_ERR_INVALID, "no name");
	is_int(add(w, "k", 5, 1, NULL, text), 0, "after that a right one is taken");
	is_int(gradcomp_records_classes(w, 1, cat, &why), 0, "one class");
	is_int(gradcomp_records_classes(w, 1, cat, &why), GRADCOMP_ERR_STATE, "classes twice");
	is_int(gradcomp_records_finish(w, &why), GRADCOMP_ERR_INVALID, "a label without a class");
	like(why.text, "there is the label 5 and there are 1 classes", "... says so");
	is_int(entries(), 2, "nothing is left");
	must(gradcomp_records_create("a.gcr", &w, &why), why.text);
	is_int(add(w, "other", 0, 1, NULL, text), 0, "a record");
	gradcomp_records_abandon(w);
	gradcomp_records_abandon(NULL);
	shows("a.gcr", 0, NULL, small, "given up, the old file stays");
}

static void golden(void)
{
	const char *src = getenv("GRADCOMP_SRC");
	static unsigned char frozen[4096];
	char path[600];
	snprintf(path, sizeof path, "%s/tests/golden/records-1.gcr", src ? src : ".");
	int fd = open(path, O_RDONLY);
	ssize_t n = read(fd, frozen, sizeof frozen);
	close(fd);
	shows(path, 0, NULL, small, "the frozen file of version 1");
	ok(n == (ssize_t)file_bytes && !memcmp(frozen, file, file_bytes), "... is what is written today");
}

/* Makes sums right again, so that what is behind them is looked at. */
static void seal(void)
{
	unsigned char *foot = file + file_bytes - RECORDS_FOOT;
	uint64_t at = get64(foot), n = get64(foot + 8);
	if (at < file_bytes && n < file_bytes - at)
		put64(foot + 40, checksum_of(file + at, n, 0));
	put64(foot + 48, checksum_of(foot, 48, 0));
}

static void wrong(const char *words, gradcomp_status status, const char *name)
{
	put_bytes("bad.gcr", file, file_bytes);
	refused("bad.gcr", RECORDS, status, words, name);
	load("a.gcr");
}

static void damage(void)
{
	int bad = 0;
	for (size_t i = 0; i < file_bytes; i++) {
		put_bytes("bad.gcr", file, i);
		gradcomp_samples *s = open_as("bad.gcr", RECORDS, NULL);
		bad += s || why.status != GRADCOMP_ERR_INVALID || !strstr(why.text, "bad.gcr: ");
		gradcomp_samples_close(s);
	}
	is_int(bad, 0, "cut off at any byte it is refused");
	uint64_t index = get64(file + file_bytes - RECORDS_FOOT);
	bad = 0;
	int pads = 0;
	for (size_t i = 0; i < file_bytes; i++) {
		file[i] ^= 0x10;
		put_bytes("bad.gcr", file, file_bytes);
		file[i] ^= 0x10;
		gradcomp_samples *s = open_as("bad.gcr", RECORDS, NULL);
		bool same = s && !strcmp(show(s), small);
		if (i < RECORDS_HEAD || i >= index)
			bad += s != NULL;
		else if (same) /* between the parts */
			pads++;
		else
			bad += !s || !strstr(show(s), "is damaged: its checksum does not match");
		gradcomp_samples_close(s);
	}
	is_int(bad, 0, "a bit turned at any byte is noticed");
	is_int(pads, 3 + 7 + 0 + 0 + 7, "but between parts, where nobody looks");
	file[8] = 2;
	wrong("is a record file of version 2; this library reads version 1", GRADCOMP_ERR_UNSUPPORTED,
	      "another version");
	file[12] = 1;
	wrong("has flags that version 1 does not know", GRADCOMP_ERR_INVALID, "an unknown flag");
	file[4] = '\n';
	wrong("is no record file", GRADCOMP_ERR_INVALID, "a file whose newlines were changed");
}

static void lies(void)
{
	unsigned char *foot = file + file_bytes - RECORDS_FOOT, *index = file + get64(foot);
	unsigned char *parts = index + 3 * RECORDS_RECORD;
	const struct {
		unsigned char *at;
		uint64_t value;
		const char *words;
	} cases[] = {
		{foot, UINT64_MAX, "does not fit the file"},
		{foot, 8, "does not fit the file"},
		{foot + 8, UINT64_MAX - 8, "does not fit the file"},
		{foot + 16, UINT64_MAX / 24 + 2, "does not fit the file"},
		{foot + 24, 1 << 30, "does not fit the file"},
		{foot + 32, 0xffffffff, "does not fit the file"},
		{foot + 16, 2, "parts without a record"},
		{index, 1 << 20, "a record that cannot be"},
		{index + 8, 1, "a record that cannot be"},
		{index + 16, 0, "a record that cannot be"},
		{index + 16, 7, "a record that cannot be"},
		{index + 16, 2 | (uint64_t)1 << 32, "a record that cannot be"},
		{index + 16, 3 | (uint64_t)2 << 32, "a label without a class"},
		{index + 16, 3 | (uint64_t)0xfffffffe << 32, "a label without a class"},
		{parts, 0, "a part that cannot be"},
		{parts, 17, "a part that cannot be"},
		{parts, UINT64_MAX - 7, "a part that cannot be"},
		{parts + 8, UINT64_MAX - 8, "a part that cannot be"},
		{parts + 8, 1 << 20, "a part that cannot be"},
		{parts + 24, 1 << 20, "a part that cannot be"},
		{parts + 32, 16, "a part that cannot be"},
		{parts + 6 * RECORDS_PART, 1 << 20, "a class without a name"},
		{foot - 8, UINT64_MAX, "strings without an end"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		put64(cases[i].at, cases[i].value);
		seal();
		wrong(cases[i].words, GRADCOMP_ERR_INVALID, "a lie with the right sums");
	}
	put32(foot + 36, 3);
	seal();
	wrong("has an end of another version", GRADCOMP_ERR_INVALID, "an end of another version");
}

/* The same file with 5 GiB of hole in it. */
static void large(void)
{
	const uint64_t shift = (uint64_t)5 << 30;
	unsigned char *foot = file + file_bytes - RECORDS_FOOT, *parts = file + get64(foot) + 3 * RECORDS_RECORD;
	for (int i = 0; i < 6; i++)
		put64(parts + i * RECORDS_PART, get64(parts + i * RECORDS_PART) + shift);
	seal();
	put64(foot, get64(foot) + shift);
	put64(foot + 48, checksum_of(foot, 48, 0));
	put_bytes("large.gcr", file, RECORDS_HEAD);
	int fd = open("large.gcr", O_WRONLY);
	must(fd < 0 ||
	                     pwrite(fd, file + RECORDS_HEAD, file_bytes - RECORDS_HEAD,
	                            (off_t)(RECORDS_HEAD + shift)) < 0 ||
	                     close(fd)
	             ? -1
	             : 0,
	     "large.gcr");
	shows("large.gcr", 0, NULL, small, "a file of 5 GiB");
	load("a.gcr");
}

static void full_disk(void)
{
	static char block[300000];
	const void *data[] = {block};
	const uint64_t bytes[] = {sizeof block};
	gradcomp_records_writer *w;
	gradcomp_status status = GRADCOMP_OK;
	must(mkdir("disk", 0755), "mkdir");
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		if (unshare(CLONE_NEWNS) || mount("none", "/", "none", MS_REC | MS_PRIVATE, "") ||
		    mount("none", "disk", "tmpfs", 0, "size=2m"))
			_exit(77);
		if (gradcomp_records_create("disk/a.gcr", &w, &why))
			_exit(1);
		for (int i = 0; !status && i < 20; i++)
			status = gradcomp_records_add(w, "k", -1, 1, NULL, data, bytes, &why);
		if (status != GRADCOMP_ERR_IO || !strstr(why.text, "no space: disk/a.gcr needs more than"))
			_exit(2);
		if (gradcomp_records_add(w, "k", -1, 1, NULL, data, bytes, &why) != GRADCOMP_ERR_STATE)
			_exit(3);
		if (gradcomp_records_finish(w, &why) != GRADCOMP_ERR_STATE || chdir("disk") || entries() != 0)
			_exit(4);
		_exit(0);
	}
	int state;
	waitpid(child, &state, 0);
	if (WIFEXITED(state) && WEXITSTATUS(state) == 77)
		skip("no mount namespaces here", "a full disk");
	else
		ok(state == 0, "a full disk is named, and nothing is left (%x)", state);
}

/* Values of a data set. */
static unsigned char value[4096];
static uint64_t value_bytes;

static void *room(gradcomp_value_buffer *out, uint64_t bytes)
{
	(void)out;
	value_bytes = bytes;
	memset(value, 0xaa, sizeof value);
	return bytes <= sizeof value ? value : NULL;
}

static void values(void)
{
	gradcomp_samples *s = open_as("a.gcr", 0, NULL);
	gradcomp_value_buffer out = {.struct_size = sizeof out, .room = room};
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
	out.room = NULL;
	gradcomp_samples_close(s);
}

int main(int argc, char **argv)
{
	if (argc > 1) { /* makes the golden file */
		write_small(argv[1]);
		return done_testing();
	}
	begin("samples-records");
	writing();
	refusals();
	golden();
	damage();
	lies();
	large();
	full_disk();
	values();
	return done_testing();
}
