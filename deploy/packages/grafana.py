#!/usr/bin/env python3
"""Writes the dashboard as TypeScript, so that its compiler holds it to @grafana/schema.

    grafana.py DASHBOARD >board.ts

The compiler refuses what the schema does not know and what it misses. Words of Grafana's are enums there, which plain text
may not stand for: Plain makes their values of them. Panels are written one by one, because a type for each kind of panel
says what its options are.
"""
import json
import sys

RAW = "@grafana/schema/dist/types/raw/composable"
HEAD = f"""import type {{ Dashboard, DataQuery, Panel, VariableModel }} from "@grafana/schema";
import type {{ Options as Stat }} from "./node_modules/{RAW}/stat/panelcfg/x/types.gen";
import type {{ Options as Series, FieldConfig }} from "./node_modules/{RAW}/timeseries/panelcfg/x/types.gen";
type Plain<T> = T extends string ? `${{T}}` : T extends number | boolean | null | undefined ? T
  : T extends (infer U)[] ? Plain<U>[] : T extends object ? {{ [K in keyof T]: Plain<T[K]> }} : T;
type Some<T> = T extends (infer U)[] ? Some<U>[] : T extends object ? {{ [K in keyof T]?: Some<T[K]> }} : T;
type Fields = NonNullable<Plain<Panel["fieldConfig"]>>;
type Query = Omit<DataQuery, "datasource"> & {{ datasource: {{ type: string; uid: string }}; expr: string; legendFormat?: string }};
type Of<Options, Custom> = Omit<Plain<Panel>, "options" | "fieldConfig" | "targets"> & {{
  options: Some<Plain<Options>>;
  targets: Query[];
  fieldConfig: Omit<Fields, "defaults"> & {{ defaults: Omit<Fields["defaults"], "custom"> & {{ custom?: Some<Plain<Custom>> }} }};
}};
"""
KINDS = {"stat": "Of<Stat, {}>", "timeseries": "Of<Series, FieldConfig>"}


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        board = json.load(file)
    print(HEAD)
    for panel in board.pop("panels"):
        print(f"export const panel{panel['id']}: {KINDS[panel['type']]} = {json.dumps(panel)};")
    for variable in board.pop("templating")["list"]:
        print(f"export const {variable['name']}: Plain<VariableModel> = {json.dumps(variable)};")
    print(f"export const board: Omit<Plain<Dashboard>, 'panels' | 'templating'> = {json.dumps(board)};")


main()
