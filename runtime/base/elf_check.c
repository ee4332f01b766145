#include "base/elf_check.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

#if defined(__x86_64__)
#define ELF_HERE EM_X86_64
#elif defined(__aarch64__)
#define ELF_HERE EM_AARCH64
#elif defined(__powerpc64__)
#define ELF_HERE EM_PPC64
#elif defined(__s390x__)
#define ELF_HERE EM_S390
#elif defined(__riscv)
#define ELF_HERE EM_RISCV
#elif defined(__loongarch__)
#define ELF_HERE 258
#else
#error "name this machine's ELF number here"
#endif

#define ELF_DATA (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB)
/* More program headers than this no linker makes. */
#define ELF_HEADERS_MAX 4096

static int elf_read(int fd, void *out, size_t bytes, uint64_t offset)
{
	return pread(fd, out, bytes, (off_t)offset) == (ssize_t)bytes;
}

/* [offset, offset + bytes) lies in a file of `size`. */
static int elf_inside(uint64_t offset, uint64_t bytes, uint64_t size)
{
	return offset <= size && bytes <= size - offset;
}

static gradcomp_status elf_truncated(const char *path, uint64_t size, const char *what, gradcomp_error *err)
{
	return error_set(err, GRADCOMP_ERR_ABI,
	                 "%s is truncated: it has %llu bytes, %s lies beyond; install the file again", path,
	                 (unsigned long long)size, what);
}

static gradcomp_status elf_header(int fd, const char *path, uint64_t size, Elf64_Ehdr *h, gradcomp_error *err)
{
	if (size < SELFMAG || !elf_read(fd, h, SELFMAG, 0) || memcmp(h->e_ident, ELFMAG, SELFMAG))
		return error_set(err, GRADCOMP_ERR_ABI, "%s is not a shared object (no ELF header)", path);
	if (!elf_read(fd, h, sizeof *h, 0))
		return elf_truncated(path, size, "its header", err);
	if (h->e_ident[EI_CLASS] != ELFCLASS64 || h->e_ident[EI_DATA] != ELF_DATA || h->e_machine != ELF_HERE)
		return error_set(err, GRADCOMP_ERR_ABI,
		                 "%s is for another machine: ELF class %d, data %d, machine %d; here it is %d, %d, %d",
		                 path, h->e_ident[EI_CLASS], h->e_ident[EI_DATA], h->e_machine, ELFCLASS64, ELF_DATA,
		                 ELF_HERE);
	if (h->e_type != ET_DYN)
		return error_set(err, GRADCOMP_ERR_ABI,
		                 "%s is not a shared object (ELF type %d, expected %d); link it with -shared", path,
		                 h->e_type, ET_DYN);
	if (h->e_phentsize != sizeof(Elf64_Phdr) || !h->e_phnum || h->e_phnum > ELF_HEADERS_MAX)
		return error_set(err, GRADCOMP_ERR_ABI, "%s has a damaged ELF header (%d program headers of %d bytes)",
		                 path, h->e_phnum, h->e_phentsize);
	return GRADCOMP_OK;
}

gradcomp_status elf_check(int fd, const char *path, gradcomp_error *err)
{
	Elf64_Phdr *table = NULL;
	gradcomp_status status;
	Elf64_Ehdr h;
	struct stat st;
	uint64_t size;

	if (fstat(fd, &st))
		return error_errno(err, GRADCOMP_ERR_IO, "%s", path);
	size = (uint64_t)st.st_size;
	status = elf_header(fd, path, size, &h, err);
	if (status)
		return status;
	if (!elf_inside(h.e_phoff, (uint64_t)h.e_phnum * h.e_phentsize, size))
		return elf_truncated(path, size, "its program header table", err);
	/* The linker writes the section headers last: they notice a missing tail
	 * that no segment reaches into. */
	if (h.e_shoff && !elf_inside(h.e_shoff, (uint64_t)h.e_shnum * h.e_shentsize, size))
		return elf_truncated(path, size, "its section header table", err);

	table = malloc((size_t)h.e_phnum * sizeof *table);
	if (!table)
		return error_set(err, GRADCOMP_ERR_NOMEM, "%s: no memory", path);
	if (!elf_read(fd, table, (size_t)h.e_phnum * sizeof *table, h.e_phoff))
		status = error_errno(err, GRADCOMP_ERR_IO, "%s", path);
	for (int i = 0; !status && i < h.e_phnum; i++)
		if (!elf_inside(table[i].p_offset, table[i].p_filesz, size))
			status = elf_truncated(path, size, "a segment", err);
	free(table);
	return status;
}
