/* The PTX as a zero-terminated string; PTX_FILE comes from the Makefile. */
    .section .rodata
    .global gpumem_ptx
    .balign 16
gpumem_ptx:
    .incbin PTX_FILE
    .byte 0
    .section .note.GNU-stack,"",%progbits
