# The wheel, the source archive, and cleaning.

# A build of its own, which can be anywhere, with what this one has not left out.
wheel: FORCE
	+@cd $(B) && SOURCE_DATE_EPOCH="$${SOURCE_DATE_EPOCH:-$$(stat -c %Y $(abspath $(srcdir))/VERSION)}" python3 -B $(abspath $(srcdir))/tools/wheel_backend.py \
		$(B)/wheel . CC='$(CC)' $(filter --without-%,$(CONFIGURE_ARGS)) $(WHEEL_ARGS)

DIST = gradcomp-$(VERSION)
ARCHIVE = $(B)/$(DIST).tar.gz
DIST_FILES = test -e .git && git ls-files 2>/dev/null || find . -type f ! -path './build/*' ! -path './_build/*' ! -name '*.tar.gz' ! -name '*.pyc' \
	! -path ./Makefile ! -path './.git/*' | sed 's|^\./||'

# Dates and owners are fixed, so that the same sources give the same archive. It is there whole or not
# at all: several tests make it, at one time.
dist: $(ARCHIVE)
$(ARCHIVE): FORCE
	@cd $(srcdir) && { $(DIST_FILES); } | LC_ALL=C sort | tar --create --no-recursion --files-from=- \
		--transform='s|^|$(DIST)/|' --owner=0 --group=0 --numeric-owner --mode=u+w,go-w,a+rX \
		--mtime="@$${SOURCE_DATE_EPOCH:-$$(stat -c %Y VERSION)}" --format=ustar | gzip -9n >$@.$$$$ && mv $@.$$$$ $@
	@echo $@

# The archive builds with its sources read-only, passes the tests that are
# programs, and install, uninstall and distclean leave nothing.
distcheck: dist
	@set -e; work=$(B)/distcheck; chmod -R u+w $$work 2>/dev/null || :; rm -rf $$work; mkdir -p $$work/build; \
	tar -xf $(ARCHIVE) -C $$work; chmod -R a-w $$work/$(DIST); cd $$work/build; \
	../$(DIST)/configure $(CONFIGURE_ARGS) --prefix=/usr >/dev/null; \
	$(MAKE) --no-print-directory all; \
	$(MAKE) --no-print-directory check CHECK_TESTS='$(PROGRAM_TESTS)'; \
	$(MAKE) --no-print-directory install DESTDIR=$$work/root; \
	$(MAKE) --no-print-directory uninstall DESTDIR=$$work/root; \
	left=$$(find $$work/root -mindepth 1 2>/dev/null || :); \
	[ -z "$$left" ] || { echo "uninstall left: $$left" >&2; exit 1; }; \
	$(MAKE) --no-print-directory dist; cmp $(DIST).tar.gz $(ARCHIVE); rm $(DIST).tar.gz; \
	$(MAKE) --no-print-directory distclean; \
	left=$$(find . -mindepth 1); [ -z "$$left" ] || { echo "distclean left: $$left" >&2; exit 1; }; \
	chmod -R u+w $$work; rm -rf $$work
	@echo "$(ARCHIVE) is fit to be given away"

clean:
	rm -rf $(addprefix $(B)/,obj graph lib bin tests bench examples etc installed packaging gradcomp.pc gradcomp-sdk.pc asan ubsan tsan coverage distcheck wheel) $(B)/gradcomp-*.whl
distclean: clean
	rm -rf $(B)/vm $(B)/vm.lock $(B)/distro
	rm -f $(B)/gradcomp_config.h $(DEFAULTS) $(addprefix $(B)/,config.mk config.log config.status Makefile)
	$(if $(filter $(srcdir)/_build,$(B)),rm -rf $(B) $(srcdir)/Makefile)
