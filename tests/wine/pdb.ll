; named.dll: one function that is exported, and one that its PDB alone names. llc and lld-link make both.
target triple = "x86_64-pc-windows-msvc"

; where they lie
@places = dllexport constant [2 x i32 (i32)*] [i32 (i32)* @hidden, i32 (i32)* @shown]

define internal i32 @hidden(i32 %x) noinline !dbg !5 {
  %y = mul i32 %x, 3, !dbg !7
  ret i32 %y, !dbg !7
}

define dllexport i32 @shown(i32 %x) !dbg !6 {
  %y = call i32 @hidden(i32 %x), !dbg !8
  %z = xor i32 %y, 5, !dbg !8
  ret i32 %z, !dbg !8
}

!llvm.dbg.cu = !{!0}
!llvm.module.flags = !{!2, !3}
!0 = distinct !DICompileUnit(language: DW_LANG_C99, file: !1, producer: "llc", isOptimized: true, runtimeVersion: 0, emissionKind: FullDebug)
!1 = !DIFile(filename: "pdb.c", directory: "C:\\build")
!2 = !{i32 2, !"CodeView", i32 1}
!3 = !{i32 2, !"Debug Info Version", i32 3}
!4 = !DISubroutineType(types: !{null})
!5 = distinct !DISubprogram(name: "hidden", scope: !1, file: !1, line: 1, type: !4, unit: !0, spFlags: DISPFlagLocalToUnit | DISPFlagDefinition)
!6 = distinct !DISubprogram(name: "shown", scope: !1, file: !1, line: 2, type: !4, unit: !0, spFlags: DISPFlagDefinition)
!7 = !DILocation(line: 1, scope: !5)
!8 = !DILocation(line: 2, scope: !6)
