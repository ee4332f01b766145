/* Machine, model and plan files: refused in words, or taken with nothing in them that is out
 * of proportion, and the same when written and read again. The first byte says which. */
#include "tests/fuzz/harness.h"

#include "cost/planning.h"
#include "cost/machine.h"
#include "schedule/plan_file.h"

#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static long taken, refused;

static void need(bool right)
{
	if (!right)
		abort();
}

static bool is_line(linear l)
{
	return l.a >= 0 && l.a <= 60 && l.b >= 0 && l.b <= 1;
}

static gradcomp_status machine(const char *path, const char *copy, gradcomp_error *err)
{
	machine_file *m, *again = NULL;
	gradcomp_status st = machine_file_read(path, &m, err);
	if (st)
		return st;
	need(!machine_check(m, NULL));
	for (uint32_t i = 0; i < m->ncurves; i++)
		need(is_line(m->curves[i].encode) && is_line(m->curves[i].decode) && is_line(m->curves[i].code));
	need(!machine_file_write(copy, m, err) && !machine_file_read(copy, &again, err));
	need(m->nodes == again->nodes && m->memory == again->memory && m->ncurves == again->ncurves &&
	     m->ncalls == again->ncalls && m->level[1].b == again->level[1].b);
	for (uint32_t i = 0; i < m->ncurves; i++)
		need(!strcmp(m->curves[i].compressor, again->curves[i].compressor));
	machine_file_free(m);
	machine_file_free(again);
	return GRADCOMP_OK;
}

static gradcomp_status model(const char *path, const char *copy, gradcomp_error *err)
{
	model_file *m, *again = NULL;
	gradcomp_status st = model_file_read(path, &m, err);
	if (st)
		return st;
	need(!model_check(m, NULL));
	need(!model_file_write(copy, m, err) && !model_file_read(copy, &again, err));
	need(m->ntensors == again->ntensors && m->nlayers == again->nlayers);
	for (uint32_t i = 0; i < m->ntensors; i++)
		need(model_numel(&m->tensors[i]) == model_numel(&again->tensors[i]) &&
		     m->tensors[i].backward == again->tensors[i].backward);
	model_file_free(m);
	model_file_free(again);
	return GRADCOMP_OK;
}

static gradcomp_status plan(const char *path, const char *copy, gradcomp_error *err)
{
	plan_file p, again = {0};
	gradcomp_status st = plan_file_read(path, &p, err);
	if (st)
		return st;
	need(!step_plan_check(&p.plan, p.tensors, NULL) && p.tensors <= 1000000);
	need(!plan_file_write(copy, &p, err) && !plan_file_read(copy, &again, err));
	need(p.hash == again.hash && p.plan.nbuckets == again.plan.nbuckets &&
	     !memcmp(p.plan.position, again.plan.position, p.plan.nbuckets * sizeof *p.plan.position));
	plan_file_clear(&p);
	plan_file_clear(&again);
	return GRADCOMP_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static gradcomp_status (*const readers[])(const char *, const char *, gradcomp_error *) = {machine, model,
	                                                                                           plan};
	gradcomp_error err = {0};
	char path[64], copy[64];
	int fd = memfd_create("model", MFD_CLOEXEC);
	gradcomp_status st;
	if (fd < 0 || !size || write(fd, data + 1, size - 1) != (ssize_t)size - 1) {
		close(fd);
		return 0;
	}
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	snprintf(copy, sizeof copy, "/tmp/gradcomp-fuzz-model-%d", (int)getpid());
	st = readers[data[0] % 3](path, copy, &err);
	close(fd);
	unlink(copy);
	if (st)
		need(*err.text && err.status == st);
	refused += st != 0;
	taken += !st;
	return 0;
}

#ifndef LIBFUZZER
int main(void)
{
	return wire_main("model", 10000, &taken, &refused);
}
#endif
